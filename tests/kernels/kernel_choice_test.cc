// Which variant of the kernels is chosen, and the start-up check that guards the choice.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/self_check.h"
#include "quire/error.h"
#include "tests/support/cpu_variants.h"

namespace quire::cpu {
namespace {

TEST(KernelChoice, PortableAlwaysExistsAndUnknownNamesDoNot) {
  ASSERT_NE(find_kernels("portable"), nullptr);
  EXPECT_EQ(find_kernels("portable")->isa, "portable");
  EXPECT_EQ(find_kernels("avx9"), nullptr);
  EXPECT_EQ(find_kernels(""), nullptr);
}

class KernelVariant : public testing::CpuKernelTest {};
QUIRE_INSTANTIATE_VARIANTS(KernelVariant);
INSTANTIATE_TEST_SUITE_P(Amx, KernelVariant, ::testing::Values(QUIRE_CPU_MATMUL_VARIANTS), testing::variant_name);

TEST_P(KernelVariant, PassesTheSelfCheck) {
  EXPECT_EQ(table().isa, GetParam());
  EXPECT_EQ(first_difference(table(), portable()), "");
  EXPECT_EQ(&checked_kernels(table(), portable()), &table());
}

const KernelTable& portable_kernels() { return *find_kernels("portable"); }

// Wrong by one bit of one element.
float* first_element(const TensorView& t) { return t.as<float>(); }
void flip(float* value) { *value = -*value; }

void wrong_embed(const EmbedArgs& args, ThreadPool& pool) {
  portable_kernels().embed(args, pool);
  flip(first_element(args.out));
}
void wrong_rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  portable_kernels().rms_norm(args, pool);
  flip(first_element(args.out));
}
void wrong_add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool) {
  portable_kernels().add_rms_norm(args, pool);
  flip(first_element(args.residual));
}
void wrong_add(const AddArgs& args, ThreadPool& pool) {
  portable_kernels().add(args, pool);
  flip(first_element(args.residual));
}
void wrong_matmul(const MatmulArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().matmul(args, pool, scratch);
  flip(first_element(args.projections[0].out));
}
void wrong_rope(const RopeArgs& args, ThreadPool& pool) {
  portable_kernels().rope(args, pool);
  flip(first_element(args.x));
}
void wrong_append_kv(const AppendKvArgs& args, ThreadPool& pool) {
  portable_kernels().append_kv(args, pool);
  *static_cast<unsigned char*>(args.kv.keys) ^= 1u;
}
void wrong_attention(const AttentionArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().attention(args, pool, scratch);
  flip(first_element(args.out));
}
void wrong_gated_activation(const GatedActivationArgs& args, ThreadPool& pool) {
  portable_kernels().gated_activation(args, pool);
  flip(first_element(args.out));
}
void wrong_softcap(const SoftcapArgs& args, ThreadPool& pool) {
  portable_kernels().softcap(args, pool);
  flip(first_element(args.logits));
}
void wrong_sample(const SampleArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().sample(args, pool, scratch);
  args.results[0].token ^= 1;
}

// Each op, broken, is found and named, and the reference is used in its place.
TEST(KernelChoice, SelfCheckFindsADifferenceInEveryOp) {
  std::size_t found = 0;
  const auto expect_found = [&found](std::string_view op, const auto& spoil) {
    ++found;
    KernelTable table = portable_kernels();
    EXPECT_EQ(first_difference(table, portable_kernels()), "");
    spoil(table);
    EXPECT_EQ(first_difference(table, portable_kernels()), op);
    EXPECT_EQ(&checked_kernels(table, portable_kernels()), &portable_kernels());
  };
  expect_found("embed", [](KernelTable& t) { t.embed = wrong_embed; });
  expect_found("rms_norm", [](KernelTable& t) { t.rms_norm = wrong_rms_norm; });
  expect_found("add_rms_norm", [](KernelTable& t) { t.add_rms_norm = wrong_add_rms_norm; });
  expect_found("add", [](KernelTable& t) { t.add = wrong_add; });
  expect_found("matmul", [](KernelTable& t) { t.matmul = wrong_matmul; });
  expect_found("rope", [](KernelTable& t) { t.rope = wrong_rope; });
  expect_found("append_kv", [](KernelTable& t) { t.append_kv = wrong_append_kv; });
  expect_found("attention", [](KernelTable& t) { t.attention = wrong_attention; });
  expect_found("gated_activation", [](KernelTable& t) { t.gated_activation = wrong_gated_activation; });
  expect_found("softcap", [](KernelTable& t) { t.softcap = wrong_softcap; });
  expect_found("sample", [](KernelTable& t) { t.sample = wrong_sample; });
  constexpr std::size_t kNumOps = (sizeof(KernelTable) - sizeof(KernelTable::isa)) / sizeof(KernelTable::embed);
  EXPECT_EQ(found, kNumOps) << "an op of KernelTable is not broken here";
}

// What decoding a model does: one query row, heads of whole vectors.
void wrong_decode(const AttentionArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().attention(args, pool, scratch);
  if (args.q.dim(2) % 16 == 0) flip(args.out.row_as<float>(args.out.dim(0) - 1));
}
// Eight rows of activations at once, with AVX-512 up to five of them a path of their own; and rows longer than 24 blocks.
void wrong_five_rows(const MatmulArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().matmul(args, pool, scratch);
  if (args.activation_terms == 1 && args.x.dim(0) >= 5 && args.x.dim(0) <= 8) flip(first_element(args.projections[0].out));
}
void wrong_long_rows(const MatmulArgs& args, ThreadPool& pool, void* scratch) {
  portable_kernels().matmul(args, pool, scratch);
  if (args.x.dim(0) > 8 && args.x.dim(1) > 24 * 32) flip(first_element(args.projections[0].out));
}

TEST(KernelChoice, SelfCheckTakesThePathsOfDecoding) {
  KernelTable table = portable_kernels();
  table.attention = wrong_decode;
  EXPECT_EQ(first_difference(table, portable_kernels()), "attention");
  table = portable_kernels();
  table.matmul = wrong_five_rows;
  EXPECT_EQ(first_difference(table, portable_kernels()), "matmul");
  table.matmul = wrong_long_rows;
  EXPECT_EQ(first_difference(table, portable_kernels()), "matmul");
}

// best_kernels chooses once per process: each case in a process of its own.
int choice_is(const char* cap, std::string_view isa) {
  if (cap != nullptr) setenv("QUIRE_CPU_ISA", cap, 1);
  if (cap == nullptr) unsetenv("QUIRE_CPU_ISA");
  return best_kernels().isa == isa && &best_kernels() == &best_kernels() ? 0 : 1;
}

TEST(KernelChoiceDeathTest, EnvironmentCapsTheChoice) {
  const std::string_view up_to_avx2 = find_kernels("avx2") != nullptr ? "avx2" : "portable";
  const std::string_view up_to_avx512 = find_kernels("avx512") != nullptr ? "avx512" : up_to_avx2;
  const std::string_view best = find_kernels("amx") != nullptr ? "amx" : up_to_avx512;
  EXPECT_EXIT(std::exit(choice_is(nullptr, best)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(choice_is("", best)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(choice_is("amx", best)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(choice_is("avx512", up_to_avx512)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(choice_is("avx2", up_to_avx2)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(choice_is("portable", "portable")), ::testing::ExitedWithCode(0), "");
}

TEST(KernelChoice, UnknownCapIsAnError) {
  setenv("QUIRE_CPU_ISA", "avx9", 1);
  try {
    best_kernels();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("avx9"), std::string::npos);
  }
  unsetenv("QUIRE_CPU_ISA");
}

}  // namespace
}  // namespace quire::cpu
