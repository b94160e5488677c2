// append_kv, and the ops that are copies: gather_rows and copy_blocks.
#include <bit>
#include <cstring>
#include <limits>

#include "tests/support/cpu_variants.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kHeads = 3, kSize = 20, kBlockSize = 4, kBlocks = 5;

struct Pool {
  explicit Pool(DType dtype_in) : dtype(dtype_in), keys(bytes(), std::byte{0xcd}), values(bytes(), std::byte{0xcd}) {}
  std::size_t bytes() const { return kBlocks * kStride * static_cast<std::size_t>(block_bytes(dtype)); }
  KvLayer layer() { return {keys.data(), values.data(), dtype, kStride, kBlockSize, kHeads, kSize}; }

  static constexpr std::int64_t kStride = 2 * kHeads * kBlockSize * kSize;  // another layer lies between
  DType dtype;
  std::vector<std::byte> keys, values;
};

class KvCacheTest : public CpuKernelTest {
 protected:
  static void append(const cpu::KernelTable& kernels, Pool& pool, std::vector<float> k, std::vector<float> v,
                     std::vector<std::int64_t> slots, int threads = 1) {
    const auto tokens = static_cast<std::int64_t>(slots.size());
    ThreadPool thread_pool(threads);
    kernels.append_kv(
        {TensorView(k.data(), DType::kF32, {tokens, kHeads, kSize}), TensorView(v.data(), DType::kF32, {tokens, kHeads, kSize}),
         TensorView(slots.data(), DType::kI64, {tokens}), pool.layer()},
        thread_pool);
  }
};
QUIRE_INSTANTIATE_VARIANTS(KvCacheTest);
class PeerBugs : public KvCacheTest {};
QUIRE_INSTANTIATE_VARIANTS(PeerBugs);

// Written out: where each element goes, and its bits. Values are of few bits, so that rounding is exact in every type.
std::vector<std::byte> expected_pool(const Pool& empty, const std::vector<float>& x, const std::vector<std::int64_t>& slots) {
  std::vector<std::byte> pool = empty.keys;
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0) continue;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t d = 0; d < kSize; ++d) {
        const float value = x[(t * kHeads + h) * kSize + d];
        const std::int64_t element = slots[t] / kBlockSize * Pool::kStride + (h * kBlockSize + slots[t] % kBlockSize) * kSize + d;
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t half = value == 0.0f ? 0 : (bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ffff) - (112 << 10));
        const std::uint32_t stored = empty.dtype == DType::kF32 ? bits : empty.dtype == DType::kBF16 ? bits >> 16 : half;
        const int size = block_bytes(empty.dtype);
        std::memcpy(pool.data() + element * size, &stored, size);
      }
    }
  }
  return pool;
}

std::vector<float> coarse_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(static_cast<int>(hash(seed * 1000 + i) % 255) - 127) / 16.0f;
  return values;
}

TEST_P(KvCacheTest, WritesTheSlotsAndNothingElse) {
  const std::vector<std::int64_t> slots{7, 0, 19, 12, 13, 1};
  const std::vector<float> k = coarse_values(6 * kHeads * kSize, 1), v = coarse_values(6 * kHeads * kSize, 2);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const int threads : {1, 3}) {
      Pool pool(dtype);
      append(table(), pool, k, v, slots, threads);
      EXPECT_EQ(pool.keys, expected_pool(Pool(dtype), k, slots)) << to_string(dtype);
      EXPECT_EQ(pool.values, expected_pool(Pool(dtype), v, slots)) << to_string(dtype);
    }
  }
}

TEST_P(KvCacheTest, RoundsAsThePortableVariant) {
  std::vector<float> k, v = noises(5 * kHeads * kSize, 2, 1e-6f);
  for (std::uint64_t i = 0; i < 5 * kHeads * kSize; ++i) k.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(hash(i))));
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    Pool mine(dtype), theirs(dtype);
    append(table(), mine, k, v, {0, 1, 2, 3, 4});
    append(portable(), theirs, k, v, {0, 1, 2, 3, 4});
    EXPECT_EQ(mine.keys, theirs.keys);
    EXPECT_EQ(mine.values, theirs.values);
  }
}

TEST_P(PeerBugs, B083_NegativeSlotsWriteNothing) {
  const std::vector<std::int64_t> slots{5, -1, std::numeric_limits<std::int64_t>::min(), 6, -4, 19};
  const std::vector<float> k = coarse_values(6 * kHeads * kSize, 1), v = coarse_values(6 * kHeads * kSize, 2);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    Pool pool(dtype);
    append(table(), pool, k, v, slots);
    EXPECT_EQ(pool.keys, expected_pool(Pool(dtype), k, slots));
    EXPECT_EQ(pool.values, expected_pool(Pool(dtype), v, slots));
  }
}

TEST(Copies, GatherRows) {
  std::vector<float> x = noises(40 * 7, 1);
  std::vector<std::int32_t> rows{3, 39, 3, 0};
  for (int i = 0; i < 50; ++i) rows.push_back(i % 40);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> out(count * 7, NAN);
  ThreadPool pool(2);
  cpu::gather_rows({TensorView(x.data(), DType::kF32, {40, 7}), TensorView(rows.data(), DType::kI32, {count}),
                    TensorView(out.data(), DType::kF32, {count, 7})},
                   pool);
  for (std::int64_t r = 0; r < count; ++r) {
    for (int i = 0; i < 7; ++i) ASSERT_EQ(out[r * 7 + i], x[rows[r] * 7 + i]);
  }
}

TEST(Copies, BlocksOnePairAfterTheOther) {
  std::vector<char> pool{'a', 'a', 'b', 'b', 'c', 'c', 'd', 'd'};
  const BlockPair pairs[] = {{0, 1}, {1, 2}, {3, 3}, {3, 0}};  // the second copies what the first wrote
  cpu::copy_blocks({pool.data(), 2, pairs, 4});
  EXPECT_EQ(std::string(pool.begin(), pool.end()), "ddaaaadd");
}

}  // namespace
}  // namespace quire::testing
