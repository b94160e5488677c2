// dequantize_dump TYPE: blocks of TYPE from standard input, floats to standard output. For dequantize_oracle.py.
#include <cstdio>
#include <string_view>
#include <vector>

#include "model/dequantize.h"

int main(int argc, char** argv) {
  using quire::DType;
  if (argc != 2) return 2;
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                           DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    if (std::string_view(argv[1]) != to_string(type)) continue;
    std::vector<unsigned char> block(static_cast<std::size_t>(block_bytes(type)));
    std::vector<float> values(static_cast<std::size_t>(block_elements(type)));
    while (std::fread(block.data(), 1, block.size(), stdin) == block.size()) {
      quire::dequantize_row(type, block.data(), values.data(), block_elements(type));
      std::fwrite(values.data(), sizeof(float), values.size(), stdout);
    }
    return 0;
  }
  return 2;
}
