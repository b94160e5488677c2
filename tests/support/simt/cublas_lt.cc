#include "simt/cublas_lt.h"

#include <algorithm>
#include <cstring>

#include "simt/cuda/cublasLt.h"
#include "simt/device_memory.h"
#include "simt/half.h"
#include "simt/runtime.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace_bytes = 0;
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Desc = cublasLtMatmulDescOpaque_t;

constexpr std::uint64_t kAlgorithm = 0x51;  // marks an algorithm that this library gave out; what follows is its place

std::vector<simt::MatmulAlgorithm>& algorithms() {
  static std::vector<simt::MatmulAlgorithm> all(1);
  return all;
}

std::int64_t& questions() {
  static std::int64_t count = 0;
  return count;
}

std::size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

float read(const void* data, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == CUDA_R_16F ? simt::half_to_float(bits) : simt::bfloat16_to_float(bits);
}

void write(void* data, cudaDataType_t type, std::size_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] = type == CUDA_R_16F ? simt::float_to_half(value) : simt::float_to_bfloat16(value);
  }
}

// Of the last element, so that a matrix in a wider one may end with its own last row.
std::size_t bytes_of(const Layout& m) {
  return ((m.columns - 1) * static_cast<std::size_t>(m.leading) + m.rows) * element_bytes(m.type);
}

bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool transposed = desc.transpose_a == CUBLAS_OP_T;
  const std::uint64_t m = transposed ? a.columns : a.rows, k = transposed ? a.rows : a.columns;
  const bool shapes = b.rows == k && d.rows == m && d.columns == b.columns && c.rows == m && c.columns == d.columns;
  const auto dense = [](const Layout& layout) { return layout.leading >= static_cast<std::int64_t>(layout.rows); };
  return shapes && a.type == b.type && a.type != CUDA_R_32F && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F) &&
         dense(a) && dense(b) && dense(c) && dense(d) && m > 0 && k > 0 && d.columns > 0;
}

std::size_t workspace_bytes(const simt::MatmulAlgorithm& algorithm, const Layout& d) {
  return d.columns == algorithm.large_workspace_columns ? std::size_t{1} << 40 : algorithm.workspace_bytes;
}

// The algorithm, if it takes this product.
const simt::MatmulAlgorithm* find_algorithm(const cublasLtMatmulAlgo_t& algo, const Desc& desc, const Layout& a, const Layout& b,
                                            const Layout& c, const Layout& d) {
  if (algo.data[0] != kAlgorithm || algo.data[1] >= algorithms().size() || !fits(desc, a, b, c, d)) return nullptr;
  const simt::MatmulAlgorithm& found = algorithms()[algo.data[1]];
  const bool taken = d.columns >= found.least_columns && d.columns <= found.most_columns && d.columns != found.except_columns;
  return taken ? &found : nullptr;
}

struct Product {
  Desc desc;
  const void* a;
  Layout la;
  const void* b;
  Layout lb;
  void* d;
  Layout ld;
  bool descending;
};

// Each sum goes over k in its order; some are computed side by side, for a float addition takes longer than the rest.
template <float (*kToFloat)(std::uint16_t)>
void multiply(const Product& p) {
  constexpr std::size_t kRowsAtOnce = 8;
  const auto& [desc, a, la, b, lb, d, ld, descending] = p;
  const bool transposed = desc.transpose_a == CUBLAS_OP_T;
  const auto lead_a = static_cast<std::size_t>(la.leading), lead_b = static_cast<std::size_t>(lb.leading);
  const std::size_t step_m = transposed ? lead_a : 1, step_k = transposed ? 1 : lead_a;
  const auto* const as = static_cast<const std::uint16_t*>(a);
  const auto* const bs = static_cast<const std::uint16_t*>(b);
  for (std::size_t n = 0; n < ld.columns; ++n) {
    for (std::size_t first = 0; first < ld.rows; first += kRowsAtOnce) {
      const std::size_t count = std::min(kRowsAtOnce, ld.rows - first);
      float sums[kRowsAtOnce] = {};
      for (std::size_t i = 0; i < lb.rows; ++i) {
        const std::size_t k = descending ? lb.rows - 1 - i : i;
        const float x = kToFloat(bs[n * lead_b + k]);
        for (std::size_t j = 0; j < count; ++j) sums[j] += kToFloat(as[(first + j) * step_m + k * step_k]) * x;
      }
      for (std::size_t j = 0; j < count; ++j) {
        const std::size_t m = first + j;
        if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sums[j] += read(desc.bias, ld.type, m);
        write(d, ld.type, n * static_cast<std::size_t>(ld.leading) + m, sums[j]);
      }
    }
  }
}

template <typename T>
cublasStatus_t set(T& member, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename... Args>
cublasStatus_t create(T** object, Args... args) {
  *object = new T{args...};
  ++simt::runtime_objects().library;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(T* object) {
  delete object;
  --simt::runtime_objects().library;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace simt {

void set_matmul_algorithms(std::vector<MatmulAlgorithm> chosen) {
  if (chosen.empty()) chosen.emplace_back();
  algorithms() = std::move(chosen);
}

std::int64_t num_matmul_questions() { return questions(); }

}  // namespace simt

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (simt::device_is_broken()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (simt::allocation_fails()) return CUBLAS_STATUS_ALLOC_FAILED;
  return create(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return create(desc);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(desc->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return create(layout, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t, const void* value,
                                                std::size_t bytes) {
  return set(layout->columns, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(preference->workspace_bytes, value, bytes);
  return bytes == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  ++questions();
  if (handle == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  for (std::uint64_t place = 0; place < algorithms().size() && *found < wanted; ++place) {
    const cublasLtMatmulAlgo_t algo{{kAlgorithm, place}};
    const simt::MatmulAlgorithm* algorithm = find_algorithm(algo, *desc, *a, *b, *c, *d);
    if (algorithm == nullptr || workspace_bytes(*algorithm, *d) > preference->workspace_bytes) continue;
    results[(*found)++] = {algo, workspace_bytes(*algorithm, *d), CUBLAS_STATUS_SUCCESS, 1.0f};
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  ++questions();
  const simt::MatmulAlgorithm* algorithm = find_algorithm(*algo, *desc, *a, *b, *c, *d);
  if (algorithm == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {*algo, workspace_bytes(*algorithm, *d), CUBLAS_STATUS_SUCCESS, 1.0f};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  const int id = static_cast<int>(algo->data[1]);
  if (bytes != sizeof(id)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &id, sizeof(id));
  *written = sizeof(id);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void*, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t given_bytes, cudaStream_t stream) {
  const simt::MatmulAlgorithm* found = find_algorithm(*algo, *desc, *a_layout, *b_layout, *c_layout, *d_layout);
  if (handle == nullptr || found == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (workspace_bytes(*found, *d_layout) > given_bytes || !simt::in_device_memory(workspace, given_bytes))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto on_device = [](const void* data, const Layout& layout) { return simt::in_device_memory(data, bytes_of(layout)); };
  if (!on_device(a, *a_layout) || !on_device(b, *b_layout) || !on_device(d, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS &&
      !simt::in_device_memory(desc->bias, d_layout->rows * element_bytes(d_layout->type)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Product product{*desc, a, *a_layout, b, *b_layout, d, *d_layout, found->descending};
  const cudaError_t error = simt::enqueue(stream, [product] {
    product.la.type == CUDA_R_16F ? multiply<simt::half_to_float>(product) : multiply<simt::bfloat16_to_float>(product);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
