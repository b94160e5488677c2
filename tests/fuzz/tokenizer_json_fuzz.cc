// The input's first line is loaded as a tokenizer.json. If it is one, what follows (the line itself, if nothing does) is encoded
// with it, decoded and streamed. Nothing but an Error may come out, text must be UTF-8, and a stream must give what decoding the
// whole gives. Both parts are bounded: longer ones reach no other code, and take their time.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/utf8.h"
#include "quire/error.h"
#include "quire/tokenizer.h"

namespace {

constexpr std::size_t kMaxJsonBytes = 1500;
constexpr std::size_t kMaxTextBytes = 160;

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const quire::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse : {false, true}) {
    const auto ids = tokenizer.encode(text, {.add_special = true, .parse_special = parse});
    const std::string whole = tokenizer.decode(ids);
    quire::TextStream stream(tokenizer, {}, {.at_text_start = true});
    std::string streamed;
    for (const quire::TokenId id : ids) {
      const std::string piece = stream.push(id);
      require(quire::is_valid_utf8(piece));
      streamed += piece;
    }
    require(streamed + stream.finish() == whole);
    require(quire::is_valid_utf8(whole));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view json = input.substr(0, input.find('\n'));
  if (json.size() > kMaxJsonBytes) return 0;
  const std::string_view text = json.size() == size ? json : input.substr(json.size() + 1);
  try {
    use(quire::Tokenizer::from_json(json), text.substr(0, kMaxTextBytes));
  } catch (const quire::Error& error) {
    require(error.code() != quire::ErrorCode::kInternal);
  }
  return 0;
}
