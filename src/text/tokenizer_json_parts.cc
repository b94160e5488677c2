#include "text/tokenizer_json_parts.h"

#include <boost/json/array.hpp>

namespace quire::text {
namespace {

// Calls visit(step) for each element of nested Sequences, whose list is called `key`.
template <typename Visit>
void for_each_step(const JsonElement& element, std::string_view key, Visit&& visit) {
  if (element.string_at("type") != "Sequence") return visit(element);
  const JsonElement steps = element.at(key);
  for (std::size_t i = 0; i < steps.array().size(); ++i) for_each_step(steps.at(i), key, visit);
}

std::string non_empty(const JsonElement& element) {
  if (element.string().empty()) element.invalid("is empty");
  return std::string(element.string());
}

SplitBehavior read_behavior(const JsonElement& element) {
  const std::string_view name = element.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  element.unsupported("\"{}\"", name);
}

void add_pattern(std::string_view pattern, const JsonElement& element, SplitBehavior behavior, bool inverted, PreTokenizer& out) {
  if (const KnownPattern known = known_pattern(pattern); known != KnownPattern::kNone) {
    out.add_split(known, behavior, inverted);
  } else {
    out.add_split(Regex(pattern, element.path()), behavior, inverted);
  }
}

void add_split(const JsonElement& step, PreTokenizer& out) {
  const JsonElement pattern = step.at("pattern");
  const SplitBehavior behavior = read_behavior(step.at("behavior"));
  const bool inverted = step.boolean_at("invert", false);
  if (const auto literal = pattern.find("String")) {
    out.add_split_literal(non_empty(*literal), behavior, inverted);
  } else {
    add_pattern(pattern.string_at("Regex"), pattern, behavior, inverted, out);
  }
}

// Old files have `add_prefix_space` in place of `prepend_scheme`.
PrependScheme read_prepend_scheme(const JsonElement& step) {
  const auto scheme = step.find("prepend_scheme");
  if (!scheme) return step.boolean_at("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  if (scheme->string() == "always") return PrependScheme::kAlways;
  if (scheme->string() == "first") return PrependScheme::kFirst;
  if (scheme->string() == "never") return PrependScheme::kNever;
  scheme->unsupported("\"{}\"", scheme->string());
}

void add_step(const JsonElement& step, PreTokenizerParts& parts) {
  const std::string_view type = step.string_at("type");
  PreTokenizer& out = parts.pretokenizer;
  if (parts.byte_level) step.unsupported("\"{}\" after ByteLevel", type);
  if (type == "Split") {
    add_split(step, out);
  } else if (type == "ByteLevel") {
    if (step.boolean_at("add_prefix_space", true)) out.add_prefix_space();
    if (step.boolean_at("use_regex", true)) out.add_split(KnownPattern::kGpt2, SplitBehavior::kIsolated);
    parts.byte_level = true;
  } else if (type == "Digits") {
    const bool individual = step.boolean_at("individual_digits", false);
    out.add_split(KnownPattern::kNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  } else if (type == "Metaspace") {
    out.add_metaspace(non_empty(step.at("replacement")), read_prepend_scheme(step), step.boolean_at("split", true));
  } else {
    step.unsupported("pre-tokenizer \"{}\"", type);
  }
}

void add_decoder_step(const JsonElement& step, DecoderParts& parts) {
  const std::string_view type = step.string_at("type");
  if (type == "ByteLevel") {
    parts.rules.byte_level = true;
  } else if (type == "Replace") {
    if (step.string_at("content") != " ") step.at("content").unsupported("\"{}\"; only a space", step.string_at("content"));
    parts.rules.space_mark = non_empty(step.at("pattern").at("String"));
  } else if (type == "ByteFallback") {
    parts.has_byte_fallback = true;
  } else if (type == "Strip") {
    if (step.string_at("content") != " ") step.at("content").unsupported("\"{}\"; only a space", step.string_at("content"));
    if (step.at("stop").integer(0, 1 << 30) != 0) step.at("stop").unsupported("stripping at the end");
    if (step.at("start").integer(0, 1 << 30) > 1) step.at("start").unsupported("stripping more than one space");
    if (step.at("start").integer(0, 1) == 1) parts.leading_spaces = LeadingSpaces::kStripOne;
  } else if (type == "Metaspace") {
    parts.rules.space_mark = non_empty(step.at("replacement"));
    if (read_prepend_scheme(step) != PrependScheme::kNever) parts.leading_spaces = LeadingSpaces::kStripFirstToken;
  } else if (type != "Fuse") {
    step.unsupported("decoder \"{}\"", type);
  }
}

void append_special(const JsonElement& processor, const JsonElement& item, const Vocabulary& vocabulary,
                    std::vector<TokenId>& out) {
  const std::string name(item.at("SpecialToken").string_at("id"));
  const JsonElement ids = processor.at("special_tokens").at(name).at("ids");
  for (std::size_t i = 0; i < ids.array().size(); ++i) {
    out.push_back(static_cast<TokenId>(ids.at(i).integer(0, vocabulary.size() - 1)));
  }
}

void read_template(const JsonElement& processor, TokenizerParts& parts) {
  const JsonElement items = processor.at("single");
  bool seen_text = false;
  for (std::size_t i = 0; i < items.array().size(); ++i) {
    const JsonElement item = items.at(i);
    if (item.find("SpecialToken")) {
      append_special(processor, item, parts.vocabulary, seen_text ? parts.suffix_ids : parts.prefix_ids);
    } else if (item.find("Sequence") && !seen_text) {
      seen_text = true;
    } else {
      item.unsupported("neither a SpecialToken nor the one Sequence");
    }
  }
  if (!seen_text) items.unsupported("no Sequence");
}

}  // namespace

Normalizer read_normalizer(const JsonElement& root) {
  Normalizer normalizer;
  const auto element = root.find("normalizer");
  if (!element) return normalizer;
  for_each_step(*element, "normalizers", [&](const JsonElement& step) {
    const std::string_view type = step.string_at("type");
    if (type == "NFC") {
      normalizer.add_nfc();
    } else if (type == "Prepend") {
      normalizer.add_prepend(std::string(step.string_at("prepend")));
    } else if (type == "Replace") {
      const JsonElement pattern = step.at("pattern");
      const std::string to(step.string_at("content"));
      if (const auto literal = pattern.find("String")) {
        normalizer.add_replace(non_empty(*literal), to);
      } else {
        normalizer.add_replace(Regex(pattern.string_at("Regex"), pattern.path()), to);
      }
    } else {
      step.unsupported("normalizer \"{}\"", type);
    }
  });
  return normalizer;
}

PreTokenizerParts read_pretokenizer(const JsonElement& root) {
  PreTokenizerParts parts;
  if (const auto element = root.find("pre_tokenizer")) {
    for_each_step(*element, "pretokenizers", [&](const JsonElement& step) { add_step(step, parts); });
  }
  return parts;
}

DecoderParts read_decoder(const JsonElement& root) {
  DecoderParts parts;
  const auto element = root.find("decoder");
  if (!element) root.unsupported("\"decoder\" is missing");
  for_each_step(*element, "decoders", [&](const JsonElement& step) { add_decoder_step(step, parts); });
  return parts;
}

void read_post_processor(const JsonElement& root, TokenizerParts& parts) {
  const auto element = root.find("post_processor");
  if (!element) return;
  for_each_step(*element, "processors", [&](const JsonElement& step) {
    const std::string_view type = step.string_at("type");
    if (type == "TemplateProcessing") {
      if (!parts.prefix_ids.empty() || !parts.suffix_ids.empty()) step.unsupported("a second TemplateProcessing");
      read_template(step, parts);
    } else if (type != "ByteLevel") {  // which only trims offsets
      step.unsupported("post-processor \"{}\"", type);
    }
  });
}

}  // namespace quire::text
