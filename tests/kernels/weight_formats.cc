#include "tests/kernels/weight_formats.h"

#include <cmath>
#include <cstring>

namespace quire::test {
namespace {

double half_value(std::uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

template <typename T>
T read(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

double half_at(const std::uint8_t* p) { return half_value(read<std::uint16_t>(p)); }

int nibble(const std::uint8_t* bytes, int i) { return i < 16 ? bytes[i] % 16 : bytes[i - 16] / 16; }

// The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K.
void scales_k(const std::uint8_t* s, int* scale, int* minimum) {
  for (int j = 0; j < 4; ++j) {
    scale[j] = s[j] % 64;
    minimum[j] = s[4 + j] % 64;
    scale[4 + j] = s[8 + j] % 16 + s[j] / 64 * 16;
    minimum[4 + j] = s[8 + j] / 16 + s[4 + j] / 64 * 16;
  }
}

double value_k(DType type, const std::uint8_t* block, int i) {
  int scale[8], minimum[8];
  scales_k(block + 4, scale, minimum);
  const bool five = type == DType::kQ5_K;
  const std::uint8_t* nibbles = block + (five ? 48 : 16) + i / 64 * 32;
  int q = i % 64 < 32 ? nibbles[i % 32] % 16 : nibbles[i % 32] / 16;
  if (five && ((block[16 + i % 32] >> (i / 32)) & 1) != 0) q += 16;
  const float d = static_cast<float>(half_at(block)) * static_cast<float>(scale[i / 32]);
  const float m = static_cast<float>(half_at(block + 2)) * static_cast<float>(minimum[i / 32]);
  return static_cast<double>(d) * q - static_cast<double>(m);
}

double value_q6_k(const std::uint8_t* block, int i) {
  const int half = i / 128, l = i % 32, group = i % 128 / 32;
  const std::uint8_t* low = block + 64 * half;
  const std::uint8_t* high = block + 128 + 32 * half;
  const auto* scale = reinterpret_cast<const std::int8_t*>(block + 192 + 8 * half);
  int q = 0;
  if (group == 0) q = low[l] % 16 + high[l] % 4 * 16;
  if (group == 1) q = low[l + 32] % 16 + high[l] / 4 % 4 * 16;
  if (group == 2) q = low[l] / 16 + high[l] / 16 % 4 * 16;
  if (group == 3) q = low[l + 32] / 16 + high[l] / 64 * 16;
  return half_at(block + 208) * scale[l / 16 + 2 * group] * (q - 32);
}

}  // namespace

std::vector<std::size_t> scale_positions(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return {0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

std::vector<std::byte> random_weights(DType type, std::int64_t elements, std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(type, elements)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 255u);
  const auto put = [&](std::size_t at, std::uint16_t bits) { std::memcpy(bytes.data() + at, &bits, sizeof bits); };
  const auto size = static_cast<std::size_t>(block_bytes(type));
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    if (type == DType::kF32) {
      const float value = std::normal_distribution<float>()(random);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
    if (type == DType::kF16) put(at, static_cast<std::uint16_t>((random() & 0x83ffu) | (8u + random() % 9u) << 10));
    if (type == DType::kBF16) put(at, static_cast<std::uint16_t>((random() & 0x807fu) | (118u + random() % 11u) << 7));
    // 2^-7 to 2^-3, now and then a subnormal; the K formats multiply by up to 63, the 6-bit one by 128.
    const unsigned exponent = block_elements(type) == 256 ? 3u : 8u;
    for (const std::size_t position : scale_positions(type)) {
      const unsigned bits = random() % 16u == 0 ? 0u : (exponent + random() % 4u) << 10;
      put(at + position, static_cast<std::uint16_t>((random() & 0x83ffu) | bits));
    }
  }
  return bytes;
}

double weight_value(DType type, const std::byte* row, std::int64_t k) {
  const auto* block = reinterpret_cast<const std::uint8_t*>(row) + k / block_elements(type) * block_bytes(type);
  const int i = static_cast<int>(k % block_elements(type));
  switch (type) {
    case DType::kF32:
      return static_cast<double>(read<float>(block));
    case DType::kF16:
      return half_at(block);
    case DType::kBF16: {
      const std::uint32_t bits = static_cast<std::uint32_t>(read<std::uint16_t>(block)) << 16;
      return static_cast<double>(read<float>(reinterpret_cast<const std::uint8_t*>(&bits)));
    }
    case DType::kQ4_0:
      return half_at(block) * (nibble(block + 2, i) - 8);
    case DType::kQ4_1:
      return half_at(block) * nibble(block + 4, i) + half_at(block + 2);
    case DType::kQ5_0: {
      const int fifth = static_cast<int>((read<std::uint32_t>(block + 2) >> i) & 1u);
      return half_at(block) * (nibble(block + 6, i) + 16 * fifth - 16);
    }
    case DType::kQ5_1: {
      const int fifth = static_cast<int>((read<std::uint32_t>(block + 4) >> i) & 1u);
      return half_at(block) * (nibble(block + 8, i) + 16 * fifth) + half_at(block + 2);
    }
    case DType::kQ8_0:
      return half_at(block) * static_cast<std::int8_t>(block[2 + i]);
    case DType::kQ4_K:
    case DType::kQ5_K:
      return value_k(type, block, i);
    case DType::kQ6_K:
      return value_q6_k(block, i);
    default:
      return NAN;
  }
}

}  // namespace quire::test
