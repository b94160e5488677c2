#include "quire/tokenizer.h"

#include <algorithm>

#include "core/check.h"
#include "text/tokenizer_impl.h"

namespace quire {

namespace text {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Control tokens with these texts end a generation in every model that has them, whether or not its file says so.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",      "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>",
                                          "<|end_of_text|>", "<|eot|>",    "<|eom|>",    "</s>"};

}  // namespace

std::vector<TokenId> complete_end_ids(const Vocabulary& vocabulary, std::vector<TokenId> end_ids) {
  for (const std::string_view end : kEndTexts) {
    const TokenId id = vocabulary.find(end);
    if (id >= 0 && vocabulary.type(id) == TokenType::kControl) end_ids.push_back(id);
  }
  std::erase(end_ids, -1);
  std::sort(end_ids.begin(), end_ids.end());
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  return end_ids;
}

void TextAssembler::push(TokenId id, bool skip_special, std::string& out) {
  const Vocabulary& vocabulary = parts_->vocabulary;
  if (!vocabulary.contains(id)) {
    fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary of {} tokens", id, vocabulary.size());
  }
  if (skip_special && vocabulary.is_special(id)) return;
  const std::string& bytes = vocabulary.bytes(id);
  if (!at_start_ || parts_->leading_spaces == LeadingSpaces::kKeep) return utf8_.push(bytes, out);
  if (parts_->leading_spaces == LeadingSpaces::kStripFirstToken) {
    at_start_ = false;
    std::string rest = bytes;
    std::erase(rest, ' ');
    return utf8_.push(rest, out);
  }
  if (bytes.empty()) return;
  at_start_ = false;
  utf8_.push(std::string_view(bytes).substr(bytes[0] == ' ' ? 1 : 0), out);
}

}  // namespace text

struct Tokenizer::Impl::Encoding {
  std::vector<TokenId> ids;
  text::Bpe::Scratch scratch;
  text::PreTokenizer::Pieces pieces;
  bool at_text_start = true;
  bool after_token = true;  // or at the start
};

Tokenizer::Impl::Impl(text::TokenizerParts parts) : parts_(std::move(parts)) {
  for (const text::AddedToken& token : parts_.added_tokens) {
    if (token.normalized) {
      normalized_tokens_.add(token, parts_.normalizer.apply(token.content));
    } else {
      raw_tokens_.add(token, token.content);
    }
  }
}

std::vector<TokenId> Tokenizer::Impl::encode(std::string_view text, const text::Untrusted& untrusted, bool add_special) const {
  if (text.size() > text::kMaxTextBytes) {
    fail(ErrorCode::kInvalidArgument, "text of {} bytes; at most {} are encoded at once", text.size(), text::kMaxTextBytes);
  }
  Encoding encoding;
  encoding.ids.reserve(text.size() / 3 + 8);
  if (add_special) encoding.ids = parts_.prefix_ids;
  if (raw_tokens_.empty()) {
    encode_raw(text, !untrusted.touches(0, text.size()), encoding);
  } else {
    for (const auto& part : raw_tokens_.cut(text, untrusted)) {
      if (part.id < 0) {
        encode_raw(text.substr(part.begin, part.end - part.begin), !untrusted.touches(part.begin, part.end), encoding);
      } else {
        encoding.ids.push_back(part.id);
        encoding.after_token = true;
      }
      encoding.at_text_start = false;
    }
  }
  if (add_special) encoding.ids.insert(encoding.ids.end(), parts_.suffix_ids.begin(), parts_.suffix_ids.end());
  return std::move(encoding.ids);
}

std::vector<TokenId> Tokenizer::Impl::encode(std::span<const text::TextSegment> segments) const {
  std::string joined;
  std::vector<text::Span> untrusted;
  for (const text::TextSegment& segment : segments) {
    const std::size_t begin = joined.size();
    joined += segment.text;
    if (!segment.trusted && !segment.text.empty()) untrusted.push_back({begin, joined.size()});
  }
  return encode(joined, text::Untrusted(std::move(untrusted)), false);
}

void Tokenizer::Impl::encode_raw(std::string_view text, bool trusted, Encoding& encoding) const {
  std::string changed;
  if (!parts_.normalizer.empty()) {
    changed = parts_.normalizer.apply(text);
    text = changed;
  }
  if (normalized_tokens_.empty()) return encode_normalized(text, encoding);
  const auto untrusted = trusted ? text::Untrusted::none() : text::Untrusted::all();
  for (const auto& part : normalized_tokens_.cut(text, untrusted)) {
    if (part.id < 0) {
      encode_normalized(text.substr(part.begin, part.end - part.begin), encoding);
    } else {
      encoding.ids.push_back(part.id);
      encoding.after_token = true;
    }
    encoding.at_text_start = false;
  }
}

void Tokenizer::Impl::encode_normalized(std::string_view text, Encoding& encoding) const {
  std::string prefixed;
  if (encoding.after_token && !parts_.text_prefix.empty()) {
    prefixed = parts_.text_prefix;
    prefixed += text;
    text = prefixed;
  }
  encoding.after_token = false;
  auto& pieces = encoding.pieces;
  parts_.pretokenizer.cut(text, encoding.at_text_start, pieces);
  for (const text::Span& span : pieces.spans) {
    parts_.bpe.encode(pieces.text.substr(span.begin, span.end - span.begin), encoding.scratch, encoding.ids);
  }
}

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) { QUIRE_CHECK(impl_ != nullptr); }

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  const auto untrusted = options.parse_special ? text::Untrusted::none() : text::Untrusted::all();
  return impl_->encode(text, untrusted, options.add_special);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string out;
  text::TextAssembler assembler(impl_->parts(), true);
  for (const TokenId id : ids) assembler.push(id, options.skip_special, out);
  assembler.finish(out);
  return out;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  if (!impl_->vocabulary().contains(id)) {
    fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary of {} tokens", id, impl_->vocabulary().size());
  }
  return is_special(id) ? std::string() : impl_->vocabulary().bytes(id);
}

TokenId Tokenizer::token_id(std::string_view token) const { return impl_->vocabulary().find(token); }

int Tokenizer::vocab_size() const { return impl_->vocabulary().size(); }

TokenId Tokenizer::bos_id() const { return impl_->parts().bos; }

std::span<const TokenId> Tokenizer::end_ids() const { return impl_->parts().end_ids; }

bool Tokenizer::is_special(TokenId id) const { return impl_->vocabulary().contains(id) && impl_->vocabulary().is_special(id); }

std::string_view Tokenizer::chat_template_source() const { return impl_->parts().chat_template; }

}  // namespace quire
