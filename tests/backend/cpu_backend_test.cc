// The CPU backend: that ops reach their kernels with scratch enough, and that wrong arguments are refused by name.
#include "backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

#include "core/check.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/paged_attention.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

class CpuBackendTest : public CpuKernelTest {};
QUIRE_INSTANTIATE_VARIANTS(CpuBackendTest);

class CpuBackendChecks : public ::testing::Test {
 protected:
  CpuBackend backend_{*cpu::find_kernels("portable"), {.num_threads = 1}};
};
class PeerBugs : public CpuBackendChecks {};

void expect_refused(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TensorView floats(std::vector<float>& x, std::initializer_list<std::int64_t> dims) {
  return TensorView(x.data(), DType::kF32, dims);
}

TEST(Backends, DevicesAndTheirNames) {
  EXPECT_EQ(to_string(Device{DeviceKind::kCpu, 0}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceKind::kCuda, 1}), "cuda:1");
  const std::vector<Device> devices = available_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_EQ(devices[0], (Device{DeviceKind::kCpu, 0}));
  const auto backend = create_backend({DeviceKind::kCpu, 0}, {.num_threads = 1});
  EXPECT_EQ(backend->device(), (Device{DeviceKind::kCpu, 0}));
  EXPECT_EQ(backend->isa(), cpu::best_kernels().isa);
  EXPECT_EQ(backend->activation_dtype(), DType::kF32);
  EXPECT_TRUE(backend->reads_host_memory());
  EXPECT_GT(backend->free_bytes(), 0u);
}

TEST(Backends, MissingDevicesAreUnsupported) {
  const auto code_of = [](Device device, const BackendOptions& options = {}) {
    try {
      create_backend(device, options);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kNotFound;
  };
  EXPECT_EQ(code_of({DeviceKind::kCpu, 1}), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of({DeviceKind::kCuda, 1000000}), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of({DeviceKind::kCpu, 0}, {.num_threads = -1}), ErrorCode::kInvalidArgument);
}

TEST_P(CpuBackendTest, MemoryGoesUpAndDown) {
  CpuBackend backend(table(), {.num_threads = 1});
  EXPECT_EQ(backend.isa(), GetParam());
  const std::vector<float> sent = noises(1000, 1);
  std::vector<float> received(1000);
  const DeviceBuffer buffer = backend.allocate(4000);
  backend.upload(buffer.data(), sent.data(), 4000);
  backend.synchronize();
  backend.download(received.data(), buffer.data(), 4000);
  EXPECT_EQ(sent, received);
  backend.upload(nullptr, nullptr, 0);
  EXPECT_THROW(backend.allocate(std::size_t{1} << 62), Error);
}

// Forty rows in pieces of sixteen and 24, as a loader may send them: products and look-ups have the bits of the file's rows.
TEST_P(CpuBackendTest, QuantisedMatricesAreKeptInPanels) {
  CpuBackend backend(table(), {.num_threads = 2});
  std::vector<std::uint8_t> file(static_cast<std::size_t>(row_bytes(DType::kQ4_1, 40 * 64)));
  for (std::size_t i = 0; i < file.size(); ++i)
    file[i] = static_cast<std::uint8_t>(hash(i) & (i % 20 == 1 || i % 20 == 3 ? 0x3f : 0xff));
  const TensorView rows(file.data(), DType::kQ4_1, {40, 64});
  const MatrixForm form = backend.matrix_form(rows, MatrixUse::kBoth);
  EXPECT_EQ(form.layout, Layout::kPanels);
  EXPECT_FALSE(form.in_place);
  EXPECT_EQ(form.num_bytes, row_bytes(DType::kQ4_1, 48 * 64)) << "filled up to whole panels";
  EXPECT_EQ(backend.matrix_form(rows, MatrixUse::kProduct).layout, Layout::kPanels);
  EXPECT_TRUE(backend.matrix_form(rows, MatrixUse::kLookup).in_place) << "rows that are only looked up stay in the file";
  EXPECT_TRUE(backend.matrix_form(TensorView(nullptr, DType::kF16, {40, 64}), MatrixUse::kBoth).in_place);

  const DeviceBuffer buffer = backend.allocate(static_cast<std::size_t>(form.num_bytes));
  TensorView panels(buffer.data(), DType::kQ4_1, {40, 64});
  panels.layout = form.layout;
  backend.upload_matrix(panels.rows(0, 16), rows.rows(0, 16));
  backend.upload_matrix(panels.rows(16, 24), rows.rows(16, 24));
  EXPECT_THROW(panels.rows(8, 16), Error) << "panels cannot be cut";

  std::vector<float> x = noises(3 * 64, 1), from_rows(3 * 40, NAN), from_panels(3 * 40, NAN);
  const auto product = [&](const TensorView& weight, std::vector<float>& out) {
    backend.matmul({.x = floats(x, {3, 64}), .num_projections = 1, .projections = {{weight, {}, floats(out, {3, 40})}}});
  };
  product(rows, from_rows);
  product(panels, from_panels);
  EXPECT_TRUE(same_bits(from_panels, from_rows));

  std::vector<std::int32_t> ids{39, 0, 17};
  std::vector<float> row_values(3 * 64, NAN), panel_values(3 * 64, NAN);
  const TensorView tokens(ids.data(), DType::kI32, {3});
  backend.embed({rows, tokens, floats(row_values, {3, 64})});
  backend.embed({panels, tokens, floats(panel_values, {3, 64})});
  EXPECT_TRUE(same_bits(panel_values, row_values));
}

// Several at once, panels and rows, some of them not whole groups, are what they are one by one.
TEST_P(CpuBackendTest, MatricesUploadedTogether) {
  CpuBackend backend(table(), {.num_threads = 2});
  struct Matrix {
    DType type;
    std::int64_t rows, columns;
    std::vector<std::uint8_t> file;
    DeviceBuffer together, alone;
  };
  std::vector<Matrix> matrices;
  for (const auto& [type, rows, columns] :
       {std::tuple(DType::kQ8_0, 300, 64), std::tuple(DType::kF32, 3, 32), std::tuple(DType::kQ4_K, 17, 512),
        std::tuple(DType::kQ5_0, 1, 32), std::tuple(DType::kQ6_K, 160, 256)}) {
    Matrix matrix{type, rows, columns, {}, {}, {}};
    matrix.file.resize(static_cast<std::size_t>(row_bytes(type, std::int64_t{rows} * columns)));
    for (std::size_t i = 0; i < matrix.file.size(); ++i) matrix.file[i] = static_cast<std::uint8_t>(hash(i + matrices.size()));
    matrices.push_back(std::move(matrix));
  }
  std::vector<MatrixUpload> uploads;
  for (Matrix& m : matrices) {
    const TensorView from(m.file.data(), m.type, {m.rows, m.columns});
    const MatrixForm form = backend.matrix_form(from, MatrixUse::kProduct);
    TensorView to = from;
    to.layout = form.layout;
    for (DeviceBuffer* buffer : {&m.alone, &m.together}) {
      *buffer = backend.allocate(static_cast<std::size_t>(form.num_bytes));
      std::memset(buffer->data(), 0xee, buffer->bytes());
      to.data = buffer->data();
      if (buffer == &m.alone) backend.upload_matrix(to, from);
    }
    uploads.push_back({to, from});
  }
  backend.upload_matrices(uploads);
  for (const Matrix& m : matrices)
    EXPECT_EQ(std::memcmp(m.alone.data(), m.together.data(), m.alone.bytes()), 0) << to_string(m.type);
  backend.upload_matrices({});
}

TEST_P(CpuBackendTest, AttentionWithGrowingScratch) {
  CpuBackend backend(table(), {.num_threads = 2});
  for (const int kv_len : {5, 700, 30, 3000}) {
    PagedAttention paged({.sequences = {{1, 1, kv_len}, {2, 5, 5}}});
    AttentionArgs args = paged.args();
    backend.prefill_attention(args);
    const std::vector<float> out(args.out.as<float>(), args.out.as<float>() + args.out.num_elements());
    EXPECT_TRUE(same_bits(out, paged.run(table())));
    std::vector<float> again(out.size(), NAN);
    args.out.data = again.data();
    backend.decode_attention(args);
    EXPECT_TRUE(same_bits(again, out));
  }
}

TEST_P(CpuBackendTest, ElementwiseOpsReachTheirKernels) {
  CpuBackend backend(table(), {.num_threads = 2});
  std::vector<float> x = noises(60, 1), residual = noises(60, 2), weight(20, 1.0f), out(60, NAN), expected(60, NAN);
  const std::vector<float> before = residual;
  backend.add({floats(residual, {3, 20}), floats(x, {3, 20})});
  for (int i = 0; i < 60; ++i) EXPECT_EQ(residual[i], before[i] + x[i]);
  backend.rms_norm({floats(x, {3, 20}), floats(weight, {20}), floats(out, {3, 20}), 1e-6f});
  ThreadPool pool(1);
  table().rms_norm({floats(x, {3, 20}), floats(weight, {20}), floats(expected, {3, 20}), 1e-6f}, pool);
  EXPECT_TRUE(same_bits(out, expected));
  residual = before;
  backend.add_rms_norm({floats(residual, {3, 20}), floats(x, {3, 20}), floats(weight, {20}), floats(out, {3, 20}), 1e-6f});
  EXPECT_EQ(residual[7], before[7] + x[7]);
  backend.gated_activation({floats(x, {3, 20}), floats(residual, {3, 20}), floats(out, {3, 20}), Activation::kSilu});
  EXPECT_NEAR(out[3], x[3] / (1 + std::exp(-x[3])) * residual[3], 1e-6);
  std::vector<std::int32_t> rows{2, 0};
  std::vector<float> two(40);
  backend.gather_rows({floats(x, {3, 20}), TensorView(rows.data(), DType::kI32, {2}), floats(two, {2, 20})});
  EXPECT_EQ(two[5], x[45]);
  backend.softcap({floats(x, {3, 20}), 0.5f});
  EXPECT_LE(*std::max_element(x.begin(), x.end()), 0.5f);
  const SampleRow row{.temperature = 0.0f};
  SampleResult result;
  std::vector<float> logits{0, 3, 1};
  backend.sample({floats(logits, {1, 3}), &row, &result});
  EXPECT_EQ(result.token, 1);
  std::vector<char> blocks{'a', 'b'};
  const BlockPair pair{0, 1};
  backend.copy_blocks({blocks.data(), 1, &pair, 1});
  EXPECT_EQ(blocks[1], 'a');
}

TEST_P(CpuBackendTest, EmbedsAndMultiplies) {
  CpuBackend backend(table(), {.num_threads = 2});
  std::vector<float> weight = noises(5 * 64, 1), x(3 * 64, NAN), out(3 * 5, NAN);
  std::vector<std::int32_t> ids{4, 0, 2};
  backend.embed({floats(weight, {5, 64}), TensorView(ids.data(), DType::kI32, {3}), floats(x, {3, 64}), 0.5f});
  EXPECT_EQ(x[3], 0.5f * weight[4 * 64 + 3]);
  MatmulArgs args;
  args.x = floats(x, {3, 64});
  args.num_projections = 1;
  args.projections[0] = {floats(weight, {5, 64}), {}, floats(out, {3, 5})};
  backend.matmul(args);
  double expected = 0.0;
  for (int k = 0; k < 64; ++k) expected += static_cast<double>(x[64 + k]) * weight[3 * 64 + k];
  EXPECT_NEAR(out[5 + 3], expected, 1e-4);
}

TEST_P(CpuBackendTest, RotatesAndAppends) {
  CpuBackend backend(table(), {.num_threads = 2});
  std::vector<std::int32_t> positions{0, 3};
  std::vector<float> inv_freq{1.0f, 0.1f}, cos_sin(8), k = noises(2 * 2 * 4, 1), v = noises(2 * 2 * 4, 2),
                                                       pool(2 * 2 * 2 * 4, NAN);
  backend.rope_table({TensorView(positions.data(), DType::kI32, {2}), floats(inv_freq, {2}), 1.0f, floats(cos_sin, {2, 2, 2})});
  EXPECT_FLOAT_EQ(cos_sin[4], std::cos(3.0f));
  const std::vector<float> before = k;
  backend.rope({floats(k, {2, 2, 4}), floats(cos_sin, {2, 2, 2}), RopeKind::kHalfSplit});
  EXPECT_EQ(k[1], before[1]);  // position 0 stands still
  EXPECT_NE(k[9], before[9]);
  std::vector<std::int64_t> slots{1, -1};
  const KvLayer layer{pool.data(), pool.data() + 16, DType::kF32, 16, 2, 2, 4};
  backend.append_kv({floats(k, {2, 2, 4}), floats(v, {2, 2, 4}), TensorView(slots.data(), DType::kI64, {2}), layer});
  EXPECT_EQ(pool[4], k[0]);
  EXPECT_EQ(pool[16 + 12], v[4]);
  EXPECT_TRUE(std::isnan(pool[0]));
}

TEST_F(CpuBackendChecks, WrongShapesAreRefusedByName) {
  std::vector<float> x(60), y(60), w(20);
  expect_refused(
      [&] {
        backend_.rms_norm({floats(x, {3, 20}), floats(w, {19}), floats(y, {3, 20}), 1e-6f});
      },
      "rms_norm: weight is F32 [19], must be F32 [20]");
  expect_refused([&] { backend_.rms_norm({floats(x, {60}), floats(w, {20}), floats(y, {3, 20}), 1e-6f}); }, "rms_norm: x");
  TensorView halves(y.data(), DType::kF16, {3, 20});
  expect_refused([&] { backend_.rms_norm({floats(x, {3, 20}), floats(w, {20}), halves, 1e-6f}); }, "rms_norm: out is F16");
  TensorView nowhere(nullptr, DType::kF32, {3, 20});
  expect_refused([&] { backend_.add({floats(x, {3, 20}), nowhere}); }, "without memory");
  expect_refused(
      [&] {
        backend_.add_rms_norm({floats(x, {3, 20}), floats(y, {3, 20}), floats(w, {20}), floats(x, {3, 20}), 1e-6f});
      },
      "out is residual");
  expect_refused(
      [&] {
        backend_.gated_activation({floats(x, {3, 20}), floats(y, {20, 3}), floats(y, {3, 20})});
      },
      "up is F32 [20, 3]");
  expect_refused([&] { backend_.softcap({floats(x, {3, 20}), 0.0f}); }, "cap is 0");
  std::vector<std::int32_t> rows{0, 3};
  const TensorView row_list(rows.data(), DType::kI32, {2});
  expect_refused(
      [&] {
        backend_.gather_rows({floats(x, {3, 20}), row_list, floats(y, {2, 20})});
      },
      "rows[1] is 3, must be in [0, 3)");
  expect_refused([&] { backend_.embed({floats(x, {3, 20}), row_list, floats(y, {2, 20}), 1.0f}); }, "token_ids[1] is 3");
  expect_refused([&] { backend_.rope({floats(x, {1, 3, 20}), floats(y, {1, 11, 2})}); }, "22 elements of a head of 20");
  MatmulArgs matmul;
  matmul.x = floats(x, {3, 20});
  matmul.num_projections = 1;
  matmul.projections[0] = {floats(y, {2, 20}), {}, floats(w, {3, 3})};
  expect_refused([&] { backend_.matmul(matmul); }, "matmul: out is F32 [3, 3], must be F32 [3, 2]");
  matmul.projections[0] = {TensorView(y.data(), DType::kQ8_0, {1, 20}), {}, floats(w, {3, 1})};
  expect_refused([&] { backend_.matmul(matmul); }, "not of whole blocks");
  TensorView panels = floats(y, {3, 20});
  panels.layout = Layout::kPanels;
  matmul.projections[0] = {panels, {}, floats(w, {3, 3})};
  expect_refused([&] { backend_.matmul(matmul); }, "matmul: weight is F32 [3, 20] in panels: only quantised matrices");
  rows[1] = 0;
  expect_refused([&] { backend_.embed({panels, row_list, floats(x, {2, 20}), 1.0f}); }, "embed: table is F32 [3, 20] in panels");
  panels = TensorView(y.data(), DType::kQ8_0, {2, 32});
  panels.layout = Layout::kPanels;
  panels.outer_stride = 64;
  expect_refused([&] { backend_.embed({panels, row_list, floats(x, {2, 32}), 1.0f}); }, "in panels, with gaps");
  SampleRow row{.num_top = 21};
  SampleResult result;
  expect_refused([&] { backend_.sample({floats(x, {1, 60}), &row, &result}); }, "num_top of row 0 is 21");
  const BlockPair pair{0, -1};
  expect_refused([&] { backend_.copy_blocks({x.data(), 4, &pair, 1}); }, "from 0 to -1");
}

TEST_F(PeerBugs, B064_QueryHeadsMustBeAMultipleOfKvHeads) {
  for (const int heads : {33, 3}) {
    std::vector<float> q(heads * 16), out(heads * 16), pool(2 * 16 * 16 * 2);
    std::int32_t indptr[] = {0, 1}, kv_len = 1, page = 0;
    AttentionArgs args;
    args.q = floats(q, {1, heads, 16});
    args.out = floats(out, {1, heads, 16});
    args.kv = {pool.data(), pool.data() + 512, DType::kF32, 1024, 16, 2, 16};
    args.q_indptr = args.page_indptr = TensorView(indptr, DType::kI32, {2});
    args.kv_lens = TensorView(&kv_len, DType::kI32, {1});
    args.page_indices = TensorView(&page, DType::kI32, {1});
    expect_refused([&] { backend_.decode_attention(args); }, fmt::format("{} query heads are no multiple of 2 KV heads", heads));
  }
}

TEST_F(CpuBackendChecks, BrokenSequencesAreRefused) {
  PagedAttention paged({.sequences = {{1, 1, 20}, {2, 2, 40}}});
  const AttentionArgs good = paged.args();
  const auto with = [&](auto change) {
    return [&, change] {
      AttentionArgs args = good;
      change(args);
      backend_.prefill_attention(args);
    };
  };
  std::int32_t long_lens[] = {20, 1000}, backwards[] = {0, 3, 1}, beyond[] = {0, 1, 4};
  expect_refused(with([&](AttentionArgs& a) { a.kv_lens.data = long_lens; }), "sequence 1 has kv_len 1000");
  expect_refused(with([&](AttentionArgs& a) { a.q_indptr.data = backwards; }), "sequence 1 has rows [3, 1)");
  expect_refused(with([&](AttentionArgs& a) { a.q_indptr.data = beyond; }), "sequence 1 has rows [1, 4) of 3");
  expect_refused(with([&](AttentionArgs& a) { a.page_indices.shape[0] = 2; }), "has page entries");
  expect_refused(with([&](AttentionArgs& a) { a.kv.dtype = DType::kQ8_0; }), "the pool's type is Q8_0");
  expect_refused(with([&](AttentionArgs& a) { a.kv.block_stride = 100; }), "block_stride is 100");
  expect_refused(with([&](AttentionArgs& a) { a.out.data = a.q.data; }), "out is q");
  expect_refused(with([&](AttentionArgs& a) { a.window = -1; }), "window -1");
  expect_refused(with([&](AttentionArgs& a) { a.kv.head_size = 513; }), "head_size is 513");
}

}  // namespace
}  // namespace quire::testing
