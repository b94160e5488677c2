#include "kernels/cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "kernels/cuda/check.h"

namespace quire::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) fail(ErrorCode::kOutOfMemory, "{}: {}", call, cublasLtGetStatusName(status));
  if (status != CUBLAS_STATUS_SUCCESS) fail_call(call, cublasLtGetStatusString(status), cublasLtGetStatusName(status));
}

// cuBLASLt's objects, given back at the end of the scope.
template <typename T, cublasStatus_t (*kDestroy)(T)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  ~Owned() {
    if (object_ != nullptr) kDestroy(object_);
  }
  T* put() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType type) {
  if (type == DType::kF32) return CUDA_R_32F;
  return type == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// cuBLASLt thinks in columns: a row-major [R, K] is its K x R, so that out^T = weight x^T needs nothing moved.
struct Problem {
  Problem(const TensorView& x, const Projection& p, std::int64_t rows) {
    const std::int64_t m = p.weight.dim(0), k = p.weight.dim(1);
    check(cublasLtMatmulDescCreate(operation.put(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (p.bias.data != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.data));
    }
    make(weight, p.weight.dtype, k, m, p.weight.outer_stride);
    make(input, x.dtype, k, rows, x.outer_stride);
    make(output, p.out.dtype, m, rows, p.out.outer_stride);
  }

  // The same product of another number of rows.
  void set_rows(std::int64_t rows) {
    const auto columns = static_cast<std::uint64_t>(rows);
    for (const Layout* layout : {&input, &output}) {
      check(cublasLtMatrixLayoutSetAttribute(layout->get(), CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns)),
            "cublasLtMatrixLayoutSetAttribute");
    }
  }

  Operation operation;
  Layout weight, input, output;

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
  static void make(Layout& layout, DType type, std::int64_t rows, std::int64_t columns, std::int64_t leading) {
    check(cublasLtMatrixLayoutCreate(layout.put(), data_type(type), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), leading),
          "cublasLtMatrixLayoutCreate");
  }
};

// What the choice of an algorithm may depend on, but for the rows: sizes, strides, types, bias, alignment.
using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType, DType, bool, std::uint32_t>;

std::uint32_t alignment(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const std::uintptr_t row = static_cast<std::uintptr_t>(row_bytes(view.dtype, view.outer_stride));
  return 1u << std::min(std::countr_zero(address | row | 256), 8);
}

std::uint32_t common_alignment(const TensorView& x, const Projection& p) {
  return std::min({alignment(x), alignment(p.weight), alignment(p.out)});
}

Key key_of(const TensorView& x, const Projection& p) {
  return {p.weight.dim(0), p.weight.dim(1), x.outer_stride,         p.weight.outer_stride, p.out.outer_stride,
          x.dtype,         p.out.dtype,     p.bias.data != nullptr, common_alignment(x, p)};
}

void check_matrix(const char* field, const TensorView& view, const char* rule, bool fits) {
  if (!fits || view.data == nullptr) refuse("matmul", field, view, rule);
}

void check_args(const TensorView& x, const Projection& p) {
  const bool narrow = x.dtype == DType::kBF16 || x.dtype == DType::kF16;
  check_matrix("x", x, "[R, K] BF16 or F16", x.rank == 2 && narrow && x.outer_stride >= x.dim(1));
  check_matrix("weight", p.weight, "[M, K] of x's type",
               p.weight.rank == 2 && p.weight.dtype == x.dtype && p.weight.dim(1) == x.dim(1));
  check_matrix("out", p.out, "[R, M] of x's type or F32",
               p.out.rank == 2 && (p.out.dtype == x.dtype || p.out.dtype == DType::kF32) && p.out.dim(0) == x.dim(0) &&
                   p.out.dim(1) == p.weight.dim(0) && p.out.outer_stride >= p.out.dim(1));
  if (p.bias.data == nullptr) return;
  check_matrix("bias", p.bias, "[M] of out's type",
               p.bias.rank == 1 && p.bias.dtype == p.out.dtype && p.bias.dim(0) == p.out.dim(1));
}

}  // namespace

// Numbers of rows [first, last], and an algorithm that takes all of them that were asked about.
struct Matmul::Span {
  std::int64_t first, last;
  cublasLtMatmulAlgo_t algorithm;
};

struct Matmul::Library {
  using Spans = std::map<std::int64_t, Span>;  // by `last`; none overlap

  Handle handle;
  std::map<Key, Spans> chosen;
};

Matmul::Matmul(void* workspace, bool deterministic)
    : workspace_(workspace), deterministic_(deterministic), library_(std::make_unique<Library>()) {
  check(cublasLtCreate(library_->handle.put()), "cublasLtCreate");
}

Matmul::~Matmul() = default;

void Matmul::prepare(const MatmulArgs& largest, std::int64_t least_rows) {
  for (int i = 0; i < largest.num_projections; ++i) {
    check_args(largest.x, largest.projections[i]);
    choose(largest.x, largest.projections[i], least_rows, largest.x.dim(0));
  }
}

void Matmul::operator()(const MatmulArgs& args, Stream stream) {
  for (int i = 0; i < args.num_projections; ++i) project(args.x, args.projections[i], stream);
}

namespace {

template <typename T>
void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

// The library's proposals for so many rows, in the order of its estimates.
Algorithms proposals(cublasLtHandle_t handle, const TensorView& x, const Projection& p, std::int64_t rows) {
  constexpr int kMost = 32;
  const Problem problem(x, p, rows);
  Preference preference;
  check(cublasLtMatmulPreferenceCreate(preference.put()), "cublasLtMatmulPreferenceCreate");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Matmul::kWorkspaceBytes);
  // Neither split-K nor atomics: sums of one tile stay in one block, whatever the mode, for a product that varies from run to run
  // helps nobody.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(preference, attribute, common_alignment(x, p));
  }
  cublasLtMatmulHeuristicResult_t results[kMost] = {};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, problem.operation.get(), problem.weight.get(), problem.input.get(),
                                     problem.output.get(), problem.output.get(), preference.get(), kMost, results, &found);
  Algorithms algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (int i = 0; i < found; ++i) algorithms.push_back(results[i].algo);
  return algorithms;
}

bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, const Problem& problem) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, problem.operation.get(), problem.weight.get(), problem.input.get(), problem.output.get(),
                              problem.output.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= Matmul::kWorkspaceBytes;
}

// A step may have any number of rows up to the largest, for the last chunk of a prompt has any length. cuBLASLt is asked about
// those up to 128 and the multiples of 64 alone: any other number R is the sum of two of these, both at least 64,
// (R / 64 - 1) * 64 and what is left, and project() computes it in these two parts if the library refuses it at once. So none is
// missing in a step, for some 250 questions per kind of product where steps have 8,192 rows.
constexpr std::int64_t kPartRows = 64;

std::int64_t next_asked(std::int64_t rows) { return rows < 2 * kPartRows ? rows + 1 : (rows / kPartRows + 1) * kPartRows; }
bool is_asked(std::int64_t rows) { return next_asked(rows - 1) == rows; }

// `first`, and of the numbers of rows up to `last` those that are asked about: the first that the algorithm does not take; last
// + 1: it takes all.
std::int64_t first_refused(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, const TensorView& x,
                           const Projection& p, std::int64_t first, std::int64_t last) {
  Problem problem(x, p, first);
  for (std::int64_t rows = first; rows <= last; rows = next_asked(rows)) {
    problem.set_rows(rows);
    if (!takes(handle, algorithm, problem)) return rows;
  }
  return last + 1;
}

int id_of(const cublasLtMatmulAlgo_t& algorithm) {
  int id = -1;
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id), &written);
  return id;
}

}  // namespace

void Matmul::choose(const TensorView& x, const Projection& p, std::int64_t least_rows, std::int64_t most_rows) {
  Library::Spans& spans = library_->chosen[key_of(x, p)];
  for (std::int64_t row = least_rows; row <= most_rows;) {
    const auto next = spans.lower_bound(row);
    if (next != spans.end() && next->second.first <= row) {
      row = next->second.last + 1;
      continue;
    }
    const std::int64_t last = next == spans.end() ? most_rows : std::min(most_rows, next->second.first - 1);
    const Span* const any = spans.empty() ? nullptr : &spans.begin()->second;
    const Span span = deterministic_ ? deterministic_span(x, p, row, last, any) : next_span(x, p, row, last);
    spans.emplace(span.last, span);
    row = span.last + 1;
  }
}

// Buckets of rows by powers of two: the library's best for the largest of the bucket, as far as it goes; where it does not take
// `first`, the best for that.
Matmul::Span Matmul::next_span(const TensorView& x, const Projection& p, std::int64_t first, std::int64_t last) const {
  cublasLtHandle_t handle = library_->handle.get();
  const auto bucket = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(first)));
  if (const Algorithms best = proposals(handle, x, p, bucket); !best.empty()) {
    const std::int64_t end = first_refused(handle, best.front(), x, p, first, std::min(last, bucket));
    if (end > first) return {first, end - 1, best.front()};
  }
  for (const cublasLtMatmulAlgo_t& algorithm : proposals(handle, x, p, first)) {
    if (first_refused(handle, algorithm, x, p, first, first) > first) return {first, first, algorithm};
  }
  fail(ErrorCode::kUnsupported, "matmul: cuBLASLt has no algorithm for {} rows of x {}, weight {}, out {}", first, x.describe(),
       p.weight.describe(), p.out.describe());
}

// The algorithm that was `chosen` for other rows, if any; else the first that takes all of these, by the library's estimates for
// a number of rows in the middle of what decode and prefill bring.
Matmul::Span Matmul::deterministic_span(const TensorView& x, const Projection& p, std::int64_t first, std::int64_t last,
                                        const Span* chosen) const {
  constexpr std::int64_t kTypicalRows = 128;
  cublasLtHandle_t handle = library_->handle.get();
  if (chosen != nullptr) {
    const std::int64_t end = first_refused(handle, chosen->algorithm, x, p, first, last);
    if (end > last) return {first, last, chosen->algorithm};
    fail(ErrorCode::kUnsupported,
         "matmul: cuBLASLt's algorithm {}, chosen for {} to {} rows, does not take {} rows of x {}, weight {}, out {}",
         id_of(chosen->algorithm), chosen->first, chosen->last, end, x.describe(), p.weight.describe(), p.out.describe());
  }
  for (const cublasLtMatmulAlgo_t& algorithm : proposals(handle, x, p, kTypicalRows)) {
    if (first_refused(handle, algorithm, x, p, first, last) > last) return {first, last, algorithm};
  }
  fail(ErrorCode::kUnsupported, "matmul: cuBLASLt has no algorithm for all of {} to {} rows of x {}, weight {}, out {}", first,
       last, x.describe(), p.weight.describe(), p.out.describe());
}

const Matmul::Span* Matmul::find(const TensorView& x, const Projection& p) const {
  const auto spans = library_->chosen.find(key_of(x, p));
  if (spans == library_->chosen.end()) return nullptr;
  const auto found = spans->second.lower_bound(x.dim(0));
  return found != spans->second.end() && found->second.first <= x.dim(0) ? &found->second : nullptr;
}

void Matmul::project(const TensorView& x, const Projection& projection, Stream stream) {
  constexpr std::int64_t kDeterministicRows = 8192;  // expected of what was not prepared
  check_args(x, projection);
  const std::int64_t rows = x.dim(0);
  if (rows == 0) return;
  const Span* span = find(x, projection);
  if (span == nullptr) {
    if (deterministic_) {
      choose(x, projection, 1, std::max(rows, kDeterministicRows));
    } else {
      choose(x, projection, rows, rows);
    }
    span = find(x, projection);
  }
  const Problem problem(x, projection, rows);
  const float one = 1.0f, zero = 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(library_->handle.get(), problem.operation.get(), &one, projection.weight.data, problem.weight.get(), x.data,
                     problem.input.get(), &zero, projection.out.data, problem.output.get(), projection.out.data,
                     problem.output.get(), &span->algorithm, workspace_, kWorkspaceBytes, stream);
  // The second is the word for too small a workspace.
  const bool is_refused = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  if (!is_refused || is_asked(rows)) return check(status, "cublasLtMatmul");
  const std::int64_t first = (rows / kPartRows - 1) * kPartRows;
  const auto project_part = [&](std::int64_t begin, std::int64_t count) {
    project(x.rows(begin, count), {projection.weight, projection.bias, projection.out.rows(begin, count)}, stream);
  };
  project_part(0, first);
  project_part(first, rows - first);
}

}  // namespace quire::cuda
