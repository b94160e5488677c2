#include "kernels/cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
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

// What the choice of an algorithm may depend on; first the rows it is chosen for.
using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, DType, bool, std::uint32_t>;

std::uint32_t alignment(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const std::uintptr_t row = static_cast<std::uintptr_t>(row_bytes(view.dtype, view.outer_stride));
  return 1u << std::min(std::countr_zero(address | row | 256), 8);
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

struct Matmul::Choice {
  cublasLtMatmulAlgo_t algorithm;
  std::int64_t chosen_for = 0;     // rows
  std::set<std::int64_t> checked;  // rows that it takes
};

struct Matmul::Library {
  Handle handle;
  std::map<Key, Choice> choices;
};

Matmul::Matmul(void* workspace, bool deterministic)
    : workspace_(workspace), deterministic_(deterministic), library_(std::make_unique<Library>()) {
  check(cublasLtCreate(library_->handle.put()), "cublasLtCreate");
}

Matmul::~Matmul() = default;

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

// The library's proposals, in the order of its estimates.
Algorithms proposals(cublasLtHandle_t handle, const Problem& problem, std::uint32_t aligned) {
  constexpr int kMost = 32;
  Preference preference;
  check(cublasLtMatmulPreferenceCreate(preference.put()), "cublasLtMatmulPreferenceCreate");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Matmul::kWorkspaceBytes);
  // Neither split-K nor atomics: sums of one tile stay in one block, whatever the mode, for a product that varies from run to run
  // helps nobody.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(preference, attribute, aligned);
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

// Numbers of rows that stand for all up to `most`: powers of two, what is next to them, and the last.
std::vector<std::int64_t> sample_rows(std::int64_t most) {
  std::vector<std::int64_t> rows;
  for (std::int64_t power = 1; power < most; power *= 2) {
    for (const std::int64_t near : {power - 1, power, power + 1}) {
      if (near >= 1 && near < most) rows.push_back(near);
    }
  }
  rows.push_back(most);
  return rows;
}

int id_of(const cublasLtMatmulAlgo_t& algorithm) {
  int id = -1;
  std::size_t written = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id), &written);
  return id;
}

}  // namespace

// Deterministic: the first that takes all numbers of rows that stand for those to come.
Matmul::Choice& Matmul::choice(const TensorView& x, const Projection& p, std::int64_t rows) {
  const std::uint32_t aligned = std::min({alignment(x), alignment(p.weight), alignment(p.out)});
  const Key key{rows, p.weight.dim(0), p.weight.dim(1), x.dtype, p.out.dtype, p.bias.data != nullptr, aligned};
  if (const auto found = library_->choices.find(key); found != library_->choices.end()) return found->second;
  cublasLtHandle_t handle = library_->handle.get();
  const std::vector<std::int64_t> needed = deterministic_ ? sample_rows(most_rows_) : std::vector<std::int64_t>{rows};
  for (const cublasLtMatmulAlgo_t& algorithm : proposals(handle, Problem(x, p, rows), aligned)) {
    const auto fits = [&](std::int64_t n) { return takes(handle, algorithm, Problem(x, p, n)); };
    if (!std::all_of(needed.begin(), needed.end(), fits)) continue;
    return library_->choices.emplace(key, Choice{algorithm, rows, {needed.begin(), needed.end()}}).first->second;
  }
  fail(ErrorCode::kUnsupported, "matmul: cuBLASLt has no algorithm for {} to {} rows of x {}, weight {}, out {}", needed.front(),
       needed.back(), x.describe(), p.weight.describe(), p.out.describe());
}

void Matmul::project(const TensorView& x, const Projection& projection, Stream stream) {
  check_args(x, projection);
  const std::int64_t rows = x.dim(0);
  if (rows == 0) return;
  // Buckets of rows by powers of two. Deterministic: one bucket, in the middle of what decode and prefill bring.
  constexpr std::int64_t kDeterministicRows = 128;
  const auto bucket = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  Choice* chosen = &choice(x, projection, deterministic_ ? kDeterministicRows : bucket);
  cublasLtHandle_t handle = library_->handle.get();
  const Problem problem(x, projection, rows);
  if (!chosen->checked.contains(rows)) {
    if (takes(handle, chosen->algorithm, problem)) {
      chosen->checked.insert(rows);
    } else if (deterministic_) {
      fail(ErrorCode::kUnsupported, "matmul: cuBLASLt's algorithm {}, chosen for {} rows, does not take x {}, weight {}, out {}",
           id_of(chosen->algorithm), chosen->chosen_for, x.describe(), projection.weight.describe(), projection.out.describe());
    } else {
      chosen = &choice(x, projection, rows);
    }
  }
  const float one = 1.0f, zero = 0.0f;
  check(cublasLtMatmul(handle, problem.operation.get(), &one, projection.weight.data, problem.weight.get(), x.data,
                       problem.input.get(), &zero, projection.out.data, problem.output.get(), projection.out.data,
                       problem.output.get(), &chosen->algorithm, workspace_, kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

}  // namespace quire::cuda
