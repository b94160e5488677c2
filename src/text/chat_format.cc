#include "text/chat_format.h"

#include <initializer_list>

#include "core/check.h"

namespace quire {
namespace {

using Format = ChatTemplate::Format;

bool has(std::string_view source, std::string_view part) { return source.find(part) != std::string_view::npos; }

// `part` as a literal of its own, in either kind of quotes.
bool has_literal(std::string_view source, std::string_view part) {
  return has(source, fmt::format("'{}'", part)) || has(source, fmt::format("\"{}\"", part));
}

bool trims_content(std::string_view source) { return has(source, "| trim") || has(source, "|trim"); }

[[noreturn]] void refuse(std::string_view family, std::string_view reason) {
  fail(ErrorCode::kUnsupported, "chat template: of the {} family, but {}", family, reason);
}

std::string unescape(std::string_view literal) {
  std::string out;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    const bool is_break = literal.substr(i).starts_with("\\n");
    out += is_break ? '\n' : literal[i];
    if (is_break) ++i;
  }
  return out;
}

// The text between "<|im_start|>system\n" and "<|im_end|>" where a template writes both in one literal.
std::optional<std::string> chatml_default_system(std::string_view source) {
  constexpr std::string_view kOpen = "<|im_start|>system";
  for (std::size_t at = source.find(kOpen); at != std::string_view::npos; at = source.find(kOpen, at + 1)) {
    std::string_view rest = source.substr(at + kOpen.size());
    if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('\n')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const std::size_t end = rest.find("<|im_end|>");
    if (end == std::string_view::npos) continue;
    const std::string_view text = rest.substr(0, end);
    if (text.find_first_of("'\"{}") == std::string_view::npos) return unescape(text);
  }
  return std::nullopt;
}

Format chatml(std::string_view source) {
  const bool thinks = has(source, "enable_thinking");
  if (has(source, "<|im_sep|>")) refuse("chatml", "with <|im_sep|>");
  if (!has(source, "<|im_end|>")) refuse("chatml", "without <|im_end|>");
  if (!thinks && has(source, "think>")) refuse("chatml", "with a reasoning part of its own kind");
  if (!thinks && (trims_content(source) || has(source, "strip("))) refuse("chatml", "it changes the messages' text");
  Format f;
  f.family = thinks ? "qwen3" : has(source, "<tool_call>") ? "qwen" : "chatml";
  f.adds_bos = has(source, "bos_token");
  f.system = {"<|im_start|>system\n", "<|im_end|>\n"};
  f.user = {"<|im_start|>user\n", "<|im_end|>\n"};
  f.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
  f.generation_prompt = "<|im_start|>assistant\n";
  f.default_system = chatml_default_system(source);
  f.thinks = thinks;
  f.control_tokens = {"<|im_start|>", "<|im_end|>"};
  return f;
}

Format llama3(std::string_view source) {
  const bool trims = trims_content(source);
  const auto turn = [&](std::string_view role) {
    return Format::Turn{fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role), "<|eot_id|>", trims};
  };
  Format f;
  f.family = "llama3";
  f.adds_bos = has(source, "bos_token");
  f.system = turn("system");
  f.user = turn("user");
  f.assistant = turn("assistant");
  f.generation_prompt = f.assistant.open;
  f.control_tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  if (has(source, "Cutting Knowledge Date: December 2023")) {
    if (!has(source, "26 Jul 2024")) refuse("llama3", "with a date that is not Llama 3.1's own");
    f.system_place = Format::SystemPlace::kFirstTurn;
    // The date that the template itself falls back to. Today's would make every day's prompts different.
    f.preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  } else if (has(source, "Today Date")) {
    refuse("llama3", "with a date that is not Llama 3.1's own");
  }
  return f;
}

Format gemma(std::string_view source) {
  const bool trims = trims_content(source);
  Format f;
  f.family = "gemma";
  f.adds_bos = has(source, "bos_token");
  f.user = {"<start_of_turn>user\n", "<end_of_turn>\n", trims};
  f.assistant = {"<start_of_turn>model\n", "<end_of_turn>\n", trims};
  f.generation_prompt = f.assistant.open;
  f.system_place = Format::SystemPlace::kFirstUser;
  f.alternates = true;
  f.control_tokens = {"<start_of_turn>", "<end_of_turn>"};
  return f;
}

// Which of `literals` the template has; they are told apart by the quotes around them.
std::string only_literal(std::string_view source, std::initializer_list<std::string_view> literals) {
  std::string found;
  for (const std::string_view literal : literals) {
    if (!has_literal(source, literal)) continue;
    if (!found.empty()) refuse("mistral", fmt::format("with both '{}' and '{}'", found, literal));
    found = literal;
  }
  if (found.empty()) refuse("mistral", fmt::format("without a literal like '{}'", *literals.begin()));
  return found;
}

Format mistral(std::string_view source, std::string_view eos) {
  if (has(source, "<<SYS>>")) refuse("llama2", "that one is not supported");
  if (eos.empty()) refuse("mistral", "the vocabulary names no end token");
  Format f;
  f.adds_bos = true;
  f.user = {only_literal(source, {"[INST] ", " [INST] ", "[INST]"}), only_literal(source, {" [/INST]", "[/INST]"})};
  const bool spaced = has(source, "' ' + message['content']") || has(source, "\" \" + message[\"content\"]");
  const bool trims = has(source, "|trim + eos_token") || has(source, "| trim + eos_token");
  f.assistant = {spaced ? " " : "", std::string(eos), trims};
  if (has(source, "eos_token + ' '") || has(source, "eos_token + \" \"")) f.assistant.close += ' ';
  if (has(source, "[SYSTEM_PROMPT]")) {
    f.family = "mistral-v7";
    f.system = {only_literal(source, {"[SYSTEM_PROMPT] ", "[SYSTEM_PROMPT]"}), "[/SYSTEM_PROMPT]"};
    f.requires_system = has(source, "default_system_message");
    return f;
  }
  f.family = f.user.close == " [/INST]" ? "mistral-v1" : "mistral-v3";
  f.alternates = true;
  f.system_place = has(source, "loop.last and system_message") ? Format::SystemPlace::kLastUser : Format::SystemPlace::kFirstUser;
  return f;
}

}  // namespace

Format recognize_chat_format(std::string_view source, std::string_view eos) {
  if (source.empty()) {
    fail(ErrorCode::kUnsupported, "chat template: the model has none (a base model?); encode prompts with Tokenizer::encode");
  }
  if (has(source, "<|im_start|>")) return chatml(source);
  if (has(source, "<|start_header_id|>")) return llama3(source);
  if (has(source, "<start_of_turn>")) return gemma(source);
  if (has(source, "[INST]")) return mistral(source, eos);
  fail(ErrorCode::kUnsupported, "chat template: of no known family (chatml, qwen, llama3, gemma, mistral)");
}

}  // namespace quire
