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
struct cublasLtMatmulPreferenceOpaque_t {};

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Desc = cublasLtMatmulDescOpaque_t;

constexpr std::uint64_t kAlgorithm = 0x51;  // marks an algorithm that this library gave out

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

void multiply(const Desc& desc, const void* a, const Layout& la, const void* b, const Layout& lb, void* d, const Layout& ld) {
  const bool transposed = desc.transpose_a == CUBLAS_OP_T;
  const auto lead_a = static_cast<std::size_t>(la.leading), lead_b = static_cast<std::size_t>(lb.leading);
  for (std::size_t n = 0; n < ld.columns; ++n) {
    for (std::size_t m = 0; m < ld.rows; ++m) {
      float sum = 0.0f;
      for (std::size_t k = 0; k < lb.rows; ++k) {
        sum += read(a, la.type, transposed ? m * lead_a + k : k * lead_a + m) * read(b, lb.type, n * lead_b + k);
      }
      if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += read(desc.bias, ld.type, m);
      write(d, ld.type, n * static_cast<std::size_t>(ld.leading) + m, sum);
    }
  }
}

template <typename T>
cublasStatus_t set(T& member, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return "CUBLAS_STATUS_SUCCESS";
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *desc = new Desc;
  return CUBLAS_STATUS_SUCCESS;
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
  *layout = new Layout{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void*, std::size_t bytes) {
  const std::size_t expected = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4;
  return bytes == expected ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  if (handle == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!fits(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  results[0].algo.data[0] = kAlgorithm;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  const bool known = algo->data[0] == kAlgorithm;
  return known && fits(*desc, *a, *b, *c, *d) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void*, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void*, std::size_t, cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t ignored;
  if (cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout, d_layout, algo, &ignored) != CUBLAS_STATUS_SUCCESS)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto on_device = [](const void* data, const Layout& layout) { return simt::in_device_memory(data, bytes_of(layout)); };
  if (!on_device(a, *a_layout) || !on_device(b, *b_layout) || !on_device(d, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS &&
      !simt::in_device_memory(desc->bias, d_layout->rows * element_bytes(d_layout->type)))
    return CUBLAS_STATUS_INVALID_VALUE;
  simt::enqueue(stream,
                [desc = *desc, a, la = *a_layout, b, lb = *b_layout, d, ld = *d_layout] { multiply(desc, a, la, b, lb, d, ld); });
  return CUBLAS_STATUS_SUCCESS;
}
