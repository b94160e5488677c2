#include <algorithm>

#include "core/check.h"
#include "text/character_class.h"
#include "text/chat_format.h"
#include "text/tokenizer_impl.h"

namespace quire {
namespace {

using Format = ChatTemplate::Format;
using text::TextSegment;

enum class Role { kSystem, kUser, kAssistant };

Role role_of(const ChatMessage& message, std::size_t index) {
  if (message.role == "system") return Role::kSystem;
  if (message.role == "user") return Role::kUser;
  if (message.role == "assistant") return Role::kAssistant;
  fail(ErrorCode::kInvalidArgument, "messages[{}].role: \"{}\" is none of system, user, assistant", index, message.role);
}

// White space as of Python's str.strip(): Unicode's, and the four separators of ASCII. REQUIRES: valid UTF-8.
std::string_view strip(std::string_view s) {
  const auto is_space = [](char32_t c) { return text::is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
  while (!s.empty() && is_space(text::first_character(s))) s.remove_prefix(decode_utf8(s).length);
  while (!s.empty() && is_space(text::last_character(s))) {
    while ((static_cast<unsigned char>(s.back()) & 0xC0) == 0x80) s.remove_suffix(1);
    s.remove_suffix(1);
  }
  return s;
}

std::string_view strip_line_breaks(std::string_view s) {
  const std::size_t begin = s.find_first_not_of('\n');
  return begin == std::string_view::npos ? std::string_view() : s.substr(begin, s.find_last_not_of('\n') + 1 - begin);
}

std::string_view strip_leading_line_breaks(std::string_view s) { return s.substr(std::min(s.size(), s.find_first_not_of('\n'))); }

class Rendering {
 public:
  Rendering(const Format& format, std::string_view bos, std::span<const ChatMessage> messages)
      : format_(format), messages_(messages.begin(), messages.end()) {
    if (messages_.empty()) fail(ErrorCode::kInvalidArgument, "messages: empty");
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      roles_.push_back(role_of(messages_[i], i));
      if (!is_valid_utf8(messages_[i].content)) messages_[i].content = repair_utf8(messages_[i].content);
    }
    if (format.adds_bos) write(bos);
  }

  std::vector<TextSegment> run(bool add_generation_prompt) {
    begin_with_system();
    check_order();
    for (; next_ < messages_.size(); ++next_) write_message(next_);
    if (add_generation_prompt) write(format_.generation_prompt);
    return std::move(segments_);
  }

 private:
  using SystemPlace = Format::SystemPlace;

  void write(std::string_view text) { segments_.push_back({std::string(text), true}); }
  void write_content(std::string_view text) { segments_.push_back({std::string(text), false}); }

  void begin_with_system() {
    const bool given = roles_[0] == Role::kSystem;
    switch (format_.system_place) {
      case SystemPlace::kOwnTurn:
        if (given) return;
        if (format_.requires_system) {
          fail(ErrorCode::kInvalidArgument,
               "messages[0]: must be a system message; the model's own default depends on the date, which quire does not guess");
        }
        if (format_.default_system) write(format_.system.open + *format_.default_system + format_.system.close);
        return;
      case SystemPlace::kFirstTurn:
        write(format_.system.open + format_.preamble);
        if (given) write_content(format_.system.trims ? strip(messages_[0].content) : messages_[0].content);
        write(format_.system.close);
        break;
      case SystemPlace::kFirstUser:
      case SystemPlace::kLastUser:
        if (given) user_prefix_ = messages_[0].content + "\n\n";
        break;
    }
    if (given) next_ = 1;
  }

  void check_order() const {
    if (!format_.alternates) return;
    if (next_ == messages_.size()) fail(ErrorCode::kInvalidArgument, "messages: {} wants a user message", format_.family);
    for (std::size_t i = next_; i < messages_.size(); ++i) {
      const Role expected = (i - next_) % 2 == 0 ? Role::kUser : Role::kAssistant;
      if (roles_[i] == expected) continue;
      fail(ErrorCode::kInvalidArgument,
           "messages[{}].role: \"{}\"; {} wants user and assistant in turns, beginning with the user", i, messages_[i].role,
           format_.family);
    }
  }

  void write_message(std::size_t index) {
    const Role role = roles_[index];
    const Format::Turn& turn = role == Role::kSystem ? format_.system : role == Role::kUser ? format_.user : format_.assistant;
    write(turn.open);
    const bool takes_prefix =
        format_.system_place == SystemPlace::kLastUser ? index + 1 == messages_.size() : role == Role::kUser;
    if (role == Role::kUser && takes_prefix) write_content(std::exchange(user_prefix_, {}));
    const std::string_view content = messages_[index].content;
    if (role == Role::kAssistant && format_.thinks) {
      write_answer_with_thoughts(index, content);
    } else {
      write_content(turn.trims ? strip(content) : content);
    }
    write(turn.close);
  }

  // Qwen 3: thoughts stay with an answer that no user message follows.
  void write_answer_with_thoughts(std::size_t index, std::string_view content) {
    constexpr std::string_view kOpen = "<think>";
    constexpr std::string_view kClose = "</think>";
    std::string_view thoughts;
    if (const std::size_t first = content.find(kClose); first != std::string_view::npos) {
      thoughts = content.substr(0, first);
      if (const std::size_t open = thoughts.rfind(kOpen); open != std::string_view::npos) {
        thoughts.remove_prefix(open + kOpen.size());
      }
      thoughts = strip_line_breaks(thoughts);
      content = strip_leading_line_breaks(content.substr(content.rfind(kClose) + kClose.size()));
    }
    const bool is_last = index + 1 == messages_.size();
    const bool user_follows =
        std::find(roles_.begin() + static_cast<std::ptrdiff_t>(index), roles_.end(), Role::kUser) != roles_.end();
    const bool has_user = std::find(roles_.begin(), roles_.end(), Role::kUser) != roles_.end();
    if (has_user && !user_follows && (is_last || !thoughts.empty())) {
      write("<think>\n");
      write_content(thoughts);
      write("\n</think>\n\n");
      content = strip_leading_line_breaks(content);
    }
    write_content(content);
  }

  const Format& format_;
  std::vector<ChatMessage> messages_;  // contents valid UTF-8
  std::vector<Role> roles_;
  std::vector<TextSegment> segments_;
  std::string user_prefix_;
  std::size_t next_ = 0;  // message to be written
};

std::string token_text(const Tokenizer& tokenizer, TokenId id) {
  return id < 0 ? std::string() : tokenizer.impl().vocabulary().token(id);
}

}  // namespace

ChatTemplate::ChatTemplate(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
  auto format = std::make_shared<Format>(
      recognize_chat_format(tokenizer_.chat_template_source(), token_text(tokenizer_, tokenizer_.impl().parts().eos)));
  for (const std::string& token : format->control_tokens) {
    if (!tokenizer_.is_special(tokenizer_.token_id(token))) {
      fail(ErrorCode::kUnsupported, "chat template: of the {} family, but \"{}\" is no control token of the vocabulary",
           format->family, token);
    }
  }
  if (format->adds_bos && tokenizer_.bos_id() < 0) {
    fail(ErrorCode::kUnsupported, "chat template: of the {} family, which begins with a BOS, but the vocabulary names none",
         format->family);
  }
  format_ = std::move(format);
}

std::string_view ChatTemplate::family() const { return format_->family; }

std::vector<TokenId> ChatTemplate::encode(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  Rendering rendering(*format_, token_text(tokenizer_, tokenizer_.bos_id()), messages);
  return tokenizer_.impl().encode(rendering.run(add_generation_prompt));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  Rendering rendering(*format_, token_text(tokenizer_, tokenizer_.bos_id()), messages);
  std::string out;
  for (const text::TextSegment& segment : rendering.run(add_generation_prompt)) out += segment.text;
  return out;
}

}  // namespace quire
