// Any bytes as a GGUF file: the container, the config that its metadata describe, the arrays that a tokenizer would take. Only
// quire's own errors may come out, and none that calls itself a bug.
#include <cstdint>
#include <cstdlib>

#include "model/gguf.h"
#include "model/model_config.h"
#include "quire/error.h"

namespace {

void read(std::span<const std::byte> bytes) {
  const quire::GgufFile file = quire::GgufFile::parse(bytes, "fuzz");
  unsigned sum = 0;
  for (const quire::FileTensor& tensor : file.tensors()) {
    sum += std::to_integer<unsigned>(tensor.data.front()) + std::to_integer<unsigned>(tensor.data.back());
  }
  volatile unsigned sink = sum;
  (void)sink;
  (void)file.find_strings("tokenizer.ggml.tokens");
  (void)file.find_floats("tokenizer.ggml.scores");
  (void)file.find_integers("tokenizer.ggml.token_type");
  (void)quire::model_config_from_gguf(file);
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
