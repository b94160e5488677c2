// Loads the input as a tokenizer.json; if it is one, encodes the input itself with it, decodes and streams the result.
// Nothing but an Error may come out, decoded text must be UTF-8, and a stream must give what decoding the whole gives.
// run: fuzz_tokenizer_json tests/fuzz/corpus/tokenizer_json -max_len=4096
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "quire/error.h"
#include "quire/tokenizer.h"
#include "text/utf8.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const quire::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse : {false, true}) {
    const auto ids = tokenizer.encode(text, {.add_special = true, .parse_special = parse});
    const std::string whole = tokenizer.decode(ids);
    require(quire::text::is_valid_utf8(whole));
    quire::TextStream stream(tokenizer, {}, {.at_text_start = true});
    std::string streamed;
    for (const quire::TokenId id : ids) {
      streamed += stream.push(id);
      require(quire::text::is_valid_utf8(streamed));
    }
    require(streamed + stream.finish() == whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    use(quire::Tokenizer::from_json(text), text);
  } catch (const quire::Error& error) {
    require(error.code() != quire::ErrorCode::kInternal);
  }
  return 0;
}
