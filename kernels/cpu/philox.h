// Philox4x32-10, a counter-based random generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
// doi:10.1145/2063384.2063405): 128 random bits as a pure function of a 128-bit counter and a 64-bit key. No state.
#pragma once

#include <array>
#include <cstdint>

namespace quire::cpu {

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1), a multiple of 2^-53, for one token of one choice of one request.
constexpr double uniform(std::uint64_t seed, std::uint32_t stream, std::uint32_t index) {
  const std::array<std::uint32_t, 4> bits =
      philox4x32({index, stream, 0, 0}, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t mantissa = (std::uint64_t{bits[0]} << 21) | (bits[1] >> 11);
  return static_cast<double>(mantissa) * 0x1p-53;
}

}  // namespace quire::cpu
