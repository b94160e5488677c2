// Every op of Backend against straight loops in double, the same cases on every device there is: the CPU; CUDA's backend on the
// emulator; CUDA's backend on a GPU. An oracle takes what the device holds, rounded to its types; a result may be off by the
// roundings of one op. What only one device has to show (schedules, instruction sets, bits) is tested with its kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "backend/backend.h"
#include "core/check.h"
#include "core/float16.h"
#include "core/math.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"
#if defined(QUIRE_TEST_EMULATED)
#include "backend/cuda/cuda_backend.h"
#endif

namespace quire {
namespace {

using testing::near;
using testing::noises;

struct TestDevice {
  const char* name;
  std::unique_ptr<Backend> (*make)();  // nullptr: there is none
};

std::unique_ptr<Backend> cpu() { return create_backend({DeviceKind::kCpu, 0}, {.num_threads = 2}); }
#if defined(QUIRE_TEST_EMULATED)
std::unique_ptr<Backend> cuda_bf16() { return create_cuda_backend({DeviceKind::kCuda, 0}, {}); }
std::unique_ptr<Backend> cuda_f16() {
  return create_cuda_backend({DeviceKind::kCuda, 0}, {.activation_dtype = DType::kF16, .deterministic = false});
}
constexpr TestDevice kDevices[] = {{"Cpu", cpu}, {"EmulatedBf16", cuda_bf16}, {"EmulatedF16", cuda_f16}};
#elif defined(QUIRE_TEST_ON_GPU)
std::unique_ptr<Backend> on_gpu(const BackendOptions& options) {
  try {
    return create_backend({DeviceKind::kCuda, 0}, options);
  } catch (const Error&) {
    return nullptr;
  }
}
std::unique_ptr<Backend> cuda_bf16() { return on_gpu({}); }
std::unique_ptr<Backend> cuda_f16() { return on_gpu({.activation_dtype = DType::kF16, .deterministic = false}); }
constexpr TestDevice kDevices[] = {{"Cpu", cpu}, {"GpuBf16", cuda_bf16}, {"GpuF16", cuda_f16}};
#else
constexpr TestDevice kDevices[] = {{"Cpu", cpu}};
#endif

std::vector<float> rounded(DType type, std::vector<float> values) {
  if (type == DType::kF32) return values;
  for (float& value : values) value = widen(narrow(value, type), type);
  return values;
}

// A tensor on the device.
class Tensor {
 public:
  Tensor(Backend& backend, DType type, std::initializer_list<std::int64_t> dims)
      : backend_(&backend), view_(nullptr, type, dims), memory_(backend.allocate(static_cast<std::size_t>(view_.num_bytes()))) {
    view_.data = memory_.data();
  }
  Tensor(Backend& backend, DType type, std::initializer_list<std::int64_t> dims, const std::vector<float>& values)
      : Tensor(backend, type, dims) {
    if (type == DType::kF32) {
      upload(values);
      return;
    }
    std::vector<std::uint16_t> bits;
    for (const float value : values) bits.push_back(narrow(value, type));
    upload(bits);
  }
  template <typename Int>
  Tensor(Backend& backend, const std::vector<Int>& values)
      : Tensor(backend, sizeof(Int) == 8 ? DType::kI64 : DType::kI32, {static_cast<std::int64_t>(values.size())}) {
    upload(values);
  }

  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is its view
  const TensorView& view() const { return view_; }

  std::vector<float> floats() const {
    std::vector<float> values(static_cast<std::size_t>(view_.num_elements()));
    if (view_.dtype == DType::kF32) {
      backend_->download(values.data(), view_.data, values.size() * sizeof(float));
      return values;
    }
    std::vector<std::uint16_t> bits(values.size());
    backend_->download(bits.data(), view_.data, bits.size() * sizeof(bits.front()));
    for (std::size_t i = 0; i < bits.size(); ++i) values[i] = widen(bits[i], view_.dtype);
    return values;
  }

 private:
  template <typename T>
  void upload(const std::vector<T>& values) {
    QUIRE_CHECK(static_cast<std::int64_t>(values.size()) == view_.num_elements());
    backend_->upload(view_.data, values.data(), values.size() * sizeof(T));
  }

  Backend* backend_;
  TensorView view_;
  DeviceBuffer memory_;
};

class OpsTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    backend_ = GetParam().make();
    if (backend_ == nullptr) GTEST_SKIP() << "no GPU";
    type_ = backend_->activation_dtype();
    error_ = type_ == DType::kF32 ? 2e-6 : type_ == DType::kF16 ? 0x1p-10 : 0x1p-7;
  }

  using Dims = std::initializer_list<std::int64_t>;
  // Activations; `values` become what the device holds.
  Tensor activations(Dims dims, std::vector<float>& values) {
    values = rounded(type_, std::move(values));
    return Tensor(*backend_, type_, dims, values);
  }
  Tensor empty(Dims dims) { return Tensor(*backend_, type_, dims); }
  Tensor floats(Dims dims, const std::vector<float>& values) { return Tensor(*backend_, DType::kF32, dims, values); }
  // As a file's matrix of F32 gets onto the device; `values` become what it holds.
  Tensor matrix(std::int64_t rows, std::int64_t columns, MatrixUse use, std::vector<float>& values) {
    const TensorView file(values.data(), DType::kF32, {rows, columns});
    Tensor held(*backend_, backend_->matrix_form(file, use).dtype, {rows, columns});
    backend_->upload_matrix(held, file);
    values = rounded(held.view().dtype, std::move(values));
    return held;
  }
  void expect_near(const Tensor& out, const std::vector<double>& expected, double absolute = 1e-6) const {
    EXPECT_TRUE(near(out.floats(), expected, error_, std::max(absolute, error_ / 16)));
  }

  std::unique_ptr<Backend> backend_;
  DType type_ = DType::kF32;
  double error_ = 0.0;  // relative
};
INSTANTIATE_TEST_SUITE_P(Devices, OpsTest, ::testing::ValuesIn(kDevices), [](const auto& test) { return test.param.name; });

std::vector<double> to_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

TEST_P(OpsTest, Embed) {
  constexpr std::int64_t kVocabulary = 50, kWidth = 72;
  std::vector<float> table = noises(kVocabulary * kWidth, 1);
  const Tensor held = matrix(kVocabulary, kWidth, MatrixUse::kLookup, table), out = empty({4, kWidth});
  const std::vector<std::int32_t> ids = {49, 0, 7, 7};
  backend_->embed({.table = held, .token_ids = Tensor(*backend_, ids), .out = out, .scale = 1.5f});
  std::vector<double> expected;
  for (const std::int32_t id : ids) {
    for (std::int64_t i = 0; i < kWidth; ++i) expected.push_back(1.5 * table[id * kWidth + i]);
  }
  expect_near(out, expected);
}

TEST_P(OpsTest, RmsNormAndAddRmsNormAndAdd) {
  constexpr std::int64_t kRows = 3, kWidth = 200;
  std::vector<float> x = noises(kRows * kWidth, 2), residual = noises(kRows * kWidth, 3);
  const std::vector<float> weight = noises(kWidth, 4);
  const Tensor x_held = activations({kRows, kWidth}, x), weight_held = floats({kWidth}, weight), out = empty({kRows, kWidth});
  backend_->rms_norm({.x = x_held, .weight = weight_held, .out = out, .eps = 1e-5f});
  expect_near(out, reference::rms_norm(x, weight, 1e-5));

  const Tensor sum = activations({kRows, kWidth}, residual);
  backend_->add_rms_norm({.residual = sum, .x = x_held, .weight = weight_held, .out = out, .eps = 1e-5f});
  std::vector<double> expected_sum;
  for (std::size_t i = 0; i < x.size(); ++i) expected_sum.push_back(double{residual[i]} + x[i]);
  expect_near(sum, expected_sum);
  expect_near(out, reference::rms_norm(sum.floats(), weight, 1e-5));

  const Tensor added = activations({kRows, kWidth}, residual);
  backend_->add({.residual = added, .x = x_held});
  expect_near(added, expected_sum);
}

// Few rows and many; two projections at once, one with a bias.
TEST_P(OpsTest, Matmul) {
  constexpr std::int64_t kInner = 96, kOuter[] = {33, 16};
  for (const std::int64_t rows : {1, 9}) {
    std::vector<float> x = noises(rows * kInner, 5), bias = noises(kOuter[0], 6);
    std::vector<float> weights[] = {noises(kOuter[0] * kInner, 7, 0.1f), noises(kOuter[1] * kInner, 8, 0.1f)};
    const Tensor x_held = activations({rows, kInner}, x), bias_held = activations({kOuter[0]}, bias);
    const Tensor held[] = {matrix(kOuter[0], kInner, MatrixUse::kProduct, weights[0]),
                           matrix(kOuter[1], kInner, MatrixUse::kProduct, weights[1])};
    const Tensor outs[] = {empty({rows, kOuter[0]}), empty({rows, kOuter[1]})};
    backend_->matmul({.x = x_held, .num_projections = 2, .projections = {{held[0], bias_held, outs[0]}, {held[1], {}, outs[1]}}});
    for (int p = 0; p < 2; ++p) {
      std::vector<double> expected;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t m = 0; m < kOuter[p]; ++m) {
          double sum = p == 0 ? bias[m] : 0.0;
          for (std::int64_t k = 0; k < kInner; ++k) sum += double{x[r * kInner + k]} * weights[p][m * kInner + k];
          expected.push_back(sum);
        }
      }
      expect_near(outs[p], expected, 1e-5);
    }
  }
}

constexpr int kRot = 64;
std::vector<float> inverse_frequencies() {
  std::vector<float> inv_freq;
  for (int i = 0; i < kRot / 2; ++i) inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / kRot)));
  return inv_freq;
}

TEST_P(OpsTest, RopeTableAndRope) {
  const std::vector<std::int32_t> positions = {0, 3, 4096};
  const std::vector<float> inv_freq = inverse_frequencies();
  const Tensor table(*backend_, DType::kF32, {3, kRot / 2, 2});
  backend_->rope_table({.positions = Tensor(*backend_, positions),
                        .inv_freq = floats({kRot / 2}, inv_freq),
                        .magnitude = 1.25f,
                        .cos_sin = table});
  std::vector<double> expected;
  for (const std::int32_t position : positions) {
    for (const float f : inv_freq) {
      expected.push_back(1.25 * std::cos(position * double{f}));
      expected.push_back(1.25 * std::sin(position * double{f}));
    }
  }
  EXPECT_TRUE(near(table.floats(), expected, 1e-6, 1e-7));
  for (const RopeKind kind : {RopeKind::kHalfSplit, RopeKind::kInterleaved}) {
    std::vector<float> x = noises(3 * 2 * 64, 9);
    const Tensor held = activations({3, 2, 64}, x);
    backend_->rope({.x = held, .cos_sin = table, .kind = kind});
    expect_near(held, reference::rope(x, positions, inv_freq, 2, 64, 1.25, kind), error_);
  }
}

// ---- keys and values

constexpr int kHeads = 4, kKvHeads = 2, kHeadSize = 64, kBlockSize = 16;

// A layer's pool of one KV group; keys and values of a block lie together.
struct Pool {
  Pool(Backend& backend, DType type, int num_blocks)
      : memory(backend, type, {num_blocks, 2 * kHalf},
               std::vector<float>(static_cast<std::size_t>(num_blocks * 2 * kHalf), -77.0f)) {
    auto* base = memory.view().as<std::byte>();
    layer = {base, base + row_bytes(type, kHalf), type, 2 * kHalf, kBlockSize, kKvHeads, kHeadSize};
  }
  static std::size_t place(std::int64_t slot, int head, int d, bool is_value) {
    return static_cast<std::size_t>(slot / kBlockSize * 2 * kHalf + (is_value ? kHalf : 0) +
                                    (head * kBlockSize + slot % kBlockSize) * kHeadSize + d);
  }
  static constexpr std::int64_t kHalf = std::int64_t{kKvHeads} * kBlockSize * kHeadSize;
  Tensor memory;
  KvLayer layer;
};

class KvOpsTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    pool_type_ = type_ == DType::kF32 ? DType::kF16 : type_;
  }
  DType pool_type_ = DType::kF16;
};
INSTANTIATE_TEST_SUITE_P(Devices, KvOpsTest, ::testing::ValuesIn(kDevices), [](const auto& test) { return test.param.name; });

TEST_P(KvOpsTest, AppendAndRopeAppendAndCopyBlocks) {
  const std::vector<std::int64_t> slots = {37, -1, 0};
  const std::vector<std::int32_t> positions = {5, 6, 7};
  std::vector<float> q = noises(3 * kHeads * kHeadSize, 10), k = noises(3 * kKvHeads * kHeadSize, 11),
                     v = noises(3 * kKvHeads * kHeadSize, 12);
  const Tensor q_held = activations({3, kHeads, kHeadSize}, q), k_held = activations({3, kKvHeads, kHeadSize}, k);
  const Tensor v_held = activations({3, kKvHeads, kHeadSize}, v), slots_held(*backend_, slots);
  const auto expected = [&](const std::vector<double>& keys) {
    std::vector<double> all(static_cast<std::size_t>(4 * 2 * Pool::kHalf), -77.0);
    for (std::size_t t = 0; t < slots.size(); ++t) {
      for (int h = 0; h < kKvHeads && slots[t] >= 0; ++h) {
        for (int d = 0; d < kHeadSize; ++d) {
          const std::size_t from = (t * kKvHeads + h) * kHeadSize + d;
          all[Pool::place(slots[t], h, d, false)] = keys[from];
          all[Pool::place(slots[t], h, d, true)] = v[from];
        }
      }
    }
    return all;
  };
  const double pool_error = pool_type_ == DType::kF16 ? 0x1p-10 : 0x1p-7;
  Pool plain(*backend_, pool_type_, 4);
  backend_->append_kv({.k = k_held, .v = v_held, .slots = slots_held, .kv = plain.layer});
  EXPECT_TRUE(near(plain.memory.floats(), expected(to_doubles(k)), pool_error, 1e-6));

  const std::vector<float> inv_freq = inverse_frequencies();
  const Tensor table(*backend_, DType::kF32, {3, kRot / 2, 2});
  backend_->rope_table({.positions = Tensor(*backend_, positions), .inv_freq = floats({kRot / 2}, inv_freq), .cos_sin = table});
  Pool pool(*backend_, pool_type_, 4);
  backend_->rope_append_kv({.q = q_held, .k = k_held, .v = v_held, .cos_sin = table, .slots = slots_held, .kv = pool.layer});
  const auto rotated = [&](const std::vector<float>& x, int heads) {
    return reference::rope(x, positions, inv_freq, heads, kHeadSize, 1.0, RopeKind::kHalfSplit);
  };
  expect_near(q_held, rotated(q, kHeads), error_);
  EXPECT_TRUE(near(pool.memory.floats(), expected(rotated(k, kKvHeads)), 2 * pool_error, 2 * pool_error));

  const std::vector<float> before = pool.memory.floats();
  const BlockPair pairs[] = {{2, 1}, {1, 3}};  // one after the other
  backend_->copy_blocks(
      {.pool = pool.memory.view().data, .block_bytes = row_bytes(pool_type_, 2 * Pool::kHalf), .pairs = pairs, .num_pairs = 2});
  const std::vector<float> after = pool.memory.floats();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t block = i / (2 * Pool::kHalf), offset = i % (2 * Pool::kHalf), from = block == 0 ? 0 : 2;
    ASSERT_EQ(after[i], before[from * 2 * Pool::kHalf + offset]) << "block " << block;
  }
}

struct Step {
  std::vector<int> num_new, kv_lens;
  int num_decode = 0;
};

// One attention step: sequences' keys and values appended to blocks in descending order, then decode rows and chunks at once.
class Attention {
 public:
  Attention(Backend& backend, DType type, DType pool_type, const Step& step)
      : backend_(backend), type_(type), step_(step), pool_(backend, pool_type, 1 + num_blocks(step)) {
    std::int32_t block = num_blocks(step);
    for (std::size_t s = 0; s < step.kv_lens.size(); ++s) {
      reference::AttentionInput& input = inputs_.emplace_back();
      input.num_positions = step.kv_lens[s];
      input.num_heads = kHeads, input.num_kv_heads = kKvHeads, input.head_size = kHeadSize;
      input.q = rounded(type, noises(step.num_new[s] * kHeads * kHeadSize, 100 + s));
      input.k = rounded(type, noises(step.kv_lens[s] * kKvHeads * kHeadSize, 200 + s));
      input.v = rounded(type, noises(step.kv_lens[s] * kKvHeads * kHeadSize, 300 + s));
      std::vector<std::int64_t> slots;
      for (int i = 0; i < step.kv_lens[s]; ++i) {
        if (i % kBlockSize == 0) pages_.push_back(block--);
        slots.push_back(std::int64_t{pages_.back()} * kBlockSize + i % kBlockSize);
      }
      page_indptr_.push_back(static_cast<std::int32_t>(pages_.size()));
      q_indptr_.push_back(q_indptr_.back() + step.num_new[s]);
      kv_lens_.push_back(step.kv_lens[s]);
      const std::int64_t tokens = step.kv_lens[s];
      backend.append_kv({.k = Tensor(backend, type, {tokens, kKvHeads, kHeadSize}, input.k),
                         .v = Tensor(backend, type, {tokens, kKvHeads, kHeadSize}, input.v),
                         .slots = Tensor(backend, slots),
                         .kv = pool_.layer});
      backend.synchronize();  // the temporaries are given back
      input.k = rounded(pool_type, input.k);
      input.v = rounded(pool_type, input.v);
    }
  }

  std::vector<float> run(int window, float softcap) {
    std::vector<float> q;
    for (const auto& input : inputs_) q.insert(q.end(), input.q.begin(), input.q.end());
    const std::int64_t tokens = q_indptr_.back(), decode = step_.num_decode;
    const Tensor q_held(backend_, type_, {tokens, kHeads, kHeadSize}, q), out(backend_, type_, {tokens, kHeads, kHeadSize});
    const Tensor indptr(backend_, q_indptr_), lens(backend_, kv_lens_), page_indptr(backend_, page_indptr_),
        pages(backend_, pages_);
    AttentionLists lists;
    backend_.plan_attention({.q_indptr = q_indptr_,
                             .kv_lens = kv_lens_,
                             .num_decode = step_.num_decode,
                             .window = window,
                             .num_heads = kHeads,
                             .num_kv_heads = kKvHeads,
                             .head_size = kHeadSize},
                            lists);
    lists.decode.push_back(0), lists.prefill.push_back(0);  // so that there is memory
    const Tensor decode_list(backend_, lists.decode), prefill_list(backend_, lists.prefill);
    const auto work = [](const std::vector<std::int32_t>& list, const Tensor& held) {
      return AttentionWork{list.data(), held.view().rows(0, held.view().dim(0) - 1)};
    };
    const auto segment = [&](std::int64_t first, std::int64_t count, const AttentionWork& list) {
      return AttentionArgs{.q = q_held,
                           .out = out,
                           .kv = pool_.layer,
                           .q_indptr = indptr.view().rows(first, count + 1),
                           .kv_lens = lens.view().rows(first, count),
                           .page_indptr = page_indptr.view().rows(first, count + 1),
                           .page_indices = pages,
                           .scale = 0.125f,
                           .window = window,
                           .softcap = softcap,
                           .work = list};
    };
    const auto sequences = static_cast<std::int64_t>(kv_lens_.size());
    backend_.decode_attention(segment(0, decode, work(lists.decode, decode_list)));
    backend_.prefill_attention(segment(decode, sequences - decode, work(lists.prefill, prefill_list)));
    return out.floats();
  }

  std::vector<double> expected(int window, float softcap) const {
    std::vector<double> all;
    for (reference::AttentionInput input : inputs_) {
      input.scale = 0.125, input.window = window, input.softcap = softcap;
      const std::vector<double> one = reference::attention(input);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  static int num_blocks(const Step& step) {
    int blocks = 0;
    for (const int length : step.kv_lens) blocks += ceil_div(length, kBlockSize);
    return blocks;
  }

  Backend& backend_;
  DType type_;
  Step step_;
  Pool pool_;
  std::vector<reference::AttentionInput> inputs_;
  std::vector<std::int32_t> q_indptr_{0}, kv_lens_, page_indptr_{0}, pages_;
};

TEST_P(KvOpsTest, DecodeAndPrefillAttention) {
  const Step step{.num_new = {1, 1, 1, 5, 40, 7}, .kv_lens = {1, 17, 300, 5, 40, 83}, .num_decode = 3};
  Attention attention(*backend_, type_, pool_type_, step);
  for (const auto& [window, softcap] : {std::pair{0, 0.0f}, {20, 0.0f}, {0, 5.0f}}) {
    EXPECT_TRUE(near(attention.run(window, softcap), attention.expected(window, softcap), 2 * error_, 2 * error_))
        << "window " << window << ", softcap " << softcap;
  }
}

// ---- the rest

TEST_P(OpsTest, GatedActivation) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    std::vector<float> gate = noises(3 * 100, 13, 2.0f), up = noises(3 * 100, 14);
    const Tensor gate_held = activations({3, 100}, gate), up_held = activations({3, 100}, up), out = empty({3, 100});
    backend_->gated_activation({.gate = gate_held, .up = up_held, .out = out, .activation = activation});
    std::vector<double> expected;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double activated = activation == Activation::kSilu ? reference::silu(gate[i]) : reference::gelu_tanh(gate[i]);
      expected.push_back(activated * up[i]);
    }
    expect_near(out, expected);
  }
}

TEST_P(OpsTest, GatherRowsAndSoftcap) {
  std::vector<float> x = noises(6 * 40, 15);
  const Tensor held = activations({6, 40}, x), out = empty({3, 40});
  const std::vector<std::int32_t> rows = {5, 0, 5};
  backend_->gather_rows({.x = held, .rows = Tensor(*backend_, rows), .out = out});
  std::vector<double> expected;
  for (const std::int32_t row : rows) expected.insert(expected.end(), x.begin() + row * 40, x.begin() + (row + 1) * 40);
  EXPECT_TRUE(near(out.floats(), expected, 0.0, 0.0));

  const std::vector<float> logits = noises(2 * 99, 16, 20.0f);
  const Tensor logits_held = floats({2, 99}, logits);
  backend_->softcap({.logits = logits_held, .cap = 30.0f});
  expected.clear();
  for (const float x_i : logits) expected.push_back(30.0 * std::tanh(x_i / 30.0));
  EXPECT_TRUE(near(logits_held.floats(), expected, 1e-5, 1e-5));
}

// Tokens that the oracle's distribution holds, with its logprobs; the best one where that is asked for; a row that nothing can be
// drawn from.
TEST_P(OpsTest, Sample) {
  constexpr std::int64_t kRows = 6, kVocabulary = 1500;
  std::vector<float> logits = noises(kRows * kVocabulary, 17, 3.0f);
  logits[5 * kVocabulary + 3] = NAN;
  const std::vector<TokenCount> counts = {{3, 2}, {700, 1}};
  const std::vector<TokenBias> biases = {{5, 6.0f}, {6, -INFINITY}};
  std::vector<std::uint32_t> mask(ceil_div<std::int64_t>(kVocabulary, 32), 0x0f0f0f0f);
  SampleRow rows[kRows];
  rows[0].temperature = 0.0f;
  rows[1].top_k = 20;
  rows[2].top_p = 0.5f, rows[2].min_p = 0.01f, rows[2].mask = mask.data();
  rows[3].counts = counts.data(), rows[3].num_counts = 2, rows[3].repetition_penalty = 1.3f, rows[3].presence_penalty = 0.5f;
  rows[4].biases = biases.data(), rows[4].num_biases = 2, rows[4].typical_p = 0.9f, rows[4].temperature = 0.7f;
  SampleResult results[kRows];
  for (int i = 0; i < kRows; ++i) rows[i].seed = static_cast<std::uint64_t>(i), rows[i].logprob = true, rows[i].num_top = 2;
  backend_->sample({floats({kRows, kVocabulary}, logits), rows, results});
  for (int i = 0; i < kRows - 1; ++i) {
    SCOPED_TRACE(i);
    const std::vector<float> row(logits.begin() + i * kVocabulary, logits.begin() + (i + 1) * kVocabulary);
    const auto best = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ASSERT_TRUE(results[i].ok);
    const auto token = static_cast<std::size_t>(results[i].token);
    if (i == 0) {
      EXPECT_EQ(results[i].token, best);
    } else {
      EXPECT_GT(reference::sampling_distribution(row, rows[i])[token], 0.0);
    }
    const std::vector<double> logprobs = reference::log_softmax(row);
    EXPECT_NEAR(results[i].logprob, logprobs[token], 1e-4);
    EXPECT_EQ(results[i].top_tokens[0], best);
    EXPECT_NEAR(results[i].top_logprobs[0], logprobs[static_cast<std::size_t>(best)], 1e-4);
  }
  EXPECT_FALSE(results[kRows - 1].ok);
}

}  // namespace
}  // namespace quire
