// embed of every variant: the values of the reference implementation of the formats, bit for bit, and of our own description.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/kernels/matmul_problem.h"
#include "tests/kernels/weight_formats.h"

namespace quire::test {
namespace {

std::vector<float> embed(const cpu::KernelTable& kernels, DType type, std::vector<std::byte> table, std::int64_t width,
                         std::vector<std::int32_t> ids, float scale, int threads = 1, bool panels = false) {
  ThreadPool pool(threads);
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t vocabulary = static_cast<std::int64_t>(table.size()) / row_bytes(type, width);
  std::vector<float> out(static_cast<std::size_t>(tokens * width));
  TensorView view(table.data(), type, {vocabulary, width});
  const AlignedBuffer packed(panels ? static_cast<std::size_t>(cpu::packed_bytes(type, vocabulary, width)) : 0);
  if (panels) {
    cpu::pack_panels(view, packed.data(), pool);
    view.data = packed.data();
    view.layout = Layout::kPanels;
  }
  kernels.embed(
      {view, TensorView(ids.data(), DType::kI32, {tokens}), TensorView(out.data(), DType::kF32, {tokens, width}), scale}, pool);
  return out;
}

class EmbeddingTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EmbeddingTest, testing::ValuesIn(kWeightTypes),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(EmbeddingTest, RowsAreTheDescribedValuesTimesTheScale) {
  constexpr std::int64_t kVocabulary = 7, kWidth = 512;
  std::mt19937 random(1);
  const std::vector<std::byte> table = random_weights(GetParam(), kVocabulary * kWidth, random);
  const std::vector<std::int32_t> ids{6, 0, 3, 3, 5};
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const float scale : {1.0f, 25.298221f}) {
      const std::vector<float> out = embed(*kernels, GetParam(), table, kWidth, ids, scale);
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const std::byte* row = table.data() + ids[t] * row_bytes(GetParam(), kWidth);
        for (std::int64_t i = 0; i < kWidth; ++i) {
          const double value = weight_value(GetParam(), row, i) * static_cast<double>(scale);
          const double bound = 0x1p-22 * (std::abs(value) + 8.0 * static_cast<double>(scale));
          ASSERT_NEAR(static_cast<double>(out[t * kWidth + static_cast<std::size_t>(i)]), value, bound) << kernels->isa;
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, VariantsAndThreadsGiveTheSameBits) {
  std::mt19937 random(2);
  const std::vector<std::byte> table = random_weights(GetParam(), 5 * 256, random);
  std::vector<std::int32_t> ids(50);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 5u);
  const std::vector<float> reference = embed(*all_kernels().front(), GetParam(), table, 256, ids, 1.5f);
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const int threads : {1, 3}) {
      const std::vector<float> out = embed(*kernels, GetParam(), table, 256, ids, 1.5f, threads);
      EXPECT_EQ(std::memcmp(out.data(), reference.data(), out.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(EmbeddingTest, PanelsGiveTheBitsOfRows) {
  if (!is_quantized(GetParam())) GTEST_SKIP() << "only quantised weights are kept in panels";
  std::mt19937 random(3);
  const std::vector<std::byte> table = random_weights(GetParam(), 37 * 512, random);
  std::vector<std::int32_t> ids(37);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(36 - i);
  const std::vector<float> reference = embed(*all_kernels().front(), GetParam(), table, 512, ids, 1.5f);
  for (const cpu::KernelTable* kernels : all_kernels()) {
    const std::vector<float> out = embed(*kernels, GetParam(), table, 512, ids, 1.5f, 2, true);
    EXPECT_EQ(std::memcmp(out.data(), reference.data(), out.size() * sizeof(float)), 0) << kernels->isa;
  }
}

// FNV-1a over the bytes that gguf-py 0.19 dequantises two rows of 256 to; the rows' bytes are those of a linear congruential
// generator, with scales made finite.
struct Golden {
  DType type;
  std::uint64_t hash;
};
constexpr Golden kGolden[]{
    {DType::kQ4_0, 0x85ecd91c23e7b3fdu}, {DType::kQ4_1, 0x47b6db13442d952du}, {DType::kQ5_0, 0x48b79b9aad479effu},
    {DType::kQ5_1, 0x2a088a4ee6955effu}, {DType::kQ8_0, 0x208469c3381bfe64u}, {DType::kQ4_K, 0x4507de6adca96ac4u},
    {DType::kQ5_K, 0x80e88f46d50be74eu}, {DType::kQ6_K, 0xb52c3946e1760df8u},
};

TEST(Embedding, BitsAreThoseOfTheFormatsReferenceImplementation) {
  for (const Golden& golden : kGolden) {
    std::vector<std::byte> table(static_cast<std::size_t>(row_bytes(golden.type, 512)));
    std::uint32_t state = 1;
    for (std::byte& b : table) {
      state = state * 1664525u + 1013904223u;
      b = static_cast<std::byte>(state >> 24);
    }
    for (std::size_t at = 0; at < table.size(); at += static_cast<std::size_t>(block_bytes(golden.type))) {
      for (const std::size_t position : scale_positions(golden.type)) table[at + position + 1] &= std::byte{0xbf};
    }
    for (const cpu::KernelTable* kernels : all_kernels()) {
      const std::vector<float> out = embed(*kernels, golden.type, table, 256, {0, 1}, 1.0f);
      std::uint64_t hash = 0xcbf29ce484222325u;
      const auto* bytes = reinterpret_cast<const unsigned char*>(out.data());
      for (std::size_t i = 0; i < out.size() * sizeof(float); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
      EXPECT_EQ(hash, golden.hash) << to_string(golden.type) << " " << kernels->isa;
    }
  }
}

}  // namespace
}  // namespace quire::test
