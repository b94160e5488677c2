// Any bytes as a safetensors file, or, if they begin as an object does, as config.json. Only quire's own errors may come out, and
// none that calls itself a bug.
#include <cstdint>
#include <cstdlib>

#include "model/model_config.h"
#include "model/safetensors.h"
#include "quire/error.h"

namespace {

void read(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with('{')) {
    (void)quire::model_config_from_json(text, text, "fuzz");
    return;
  }
  unsigned sum = 0;
  for (const quire::FileTensor& tensor : quire::parse_safetensors(bytes, "fuzz")) {
    if (tensor.data.empty()) continue;
    sum += std::to_integer<unsigned>(tensor.data.front()) + std::to_integer<unsigned>(tensor.data.back());
  }
  volatile unsigned sink = sum;
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read(std::as_bytes(std::span(data, size)));
  } catch (const quire::Error& error) {
    if (error.code() == quire::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
