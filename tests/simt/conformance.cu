#include "tests/simt/conformance.h"

#include "kernels/cuda/intrinsics.cuh"
#include "kernels/cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr Stream kStream = nullptr;

QUIRE_DEVICE int thread() { return static_cast<int>(threadIdx.x); }

template <typename T>
__global__ void shuffle_kernel(ShuffleKind kind, int width, const int* operands, const T* in, T* out) {
  const int operand = operands[thread()];
  T value = in[thread()];
  switch (kind) {
    case ShuffleKind::kIndex:
      value = __shfl_sync(kAllLanes, value, operand, width);
      break;
    case ShuffleKind::kUp:
      value = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(operand), width);
      break;
    case ShuffleKind::kDown:
      value = __shfl_down_sync(kAllLanes, value, static_cast<unsigned>(operand), width);
      break;
    case ShuffleKind::kXor:
      value = __shfl_xor_sync(kAllLanes, value, operand, width);
      break;
  }
  out[thread()] = value;
}

__global__ void vote_kernel(bool halves, const int* predicates, unsigned* out) {
  const unsigned mask = !halves ? kAllLanes : thread() < 16 ? 0x0000ffffu : 0xffff0000u;
  const int predicate = predicates[thread()];
  unsigned* const mine = out + thread() * 3;
  mine[0] = __ballot_sync(mask, predicate);
  mine[1] = static_cast<unsigned>(__any_sync(mask, predicate) != 0);
  mine[2] = static_cast<unsigned>(__all_sync(mask, predicate) != 0);
}

__global__ void thread_places_kernel(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  int* const mine = out + (block * (blockDim.x * blockDim.y * blockDim.z) + in_block) * 7;
  const unsigned place[6] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z};
  QUIRE_UNROLL
  for (int i = 0; i < 6; ++i) mine[i] = static_cast<int>(place[i]);
  mine[6] = warpSize;
}

// The element opposite to this thread's; each instance has an array of its own.
template <int kInstance>
QUIRE_DEVICE float opposite(float value) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = value;
  __syncthreads();
  return values[255 - thread()];
}

__global__ void reverse_twice_kernel(const float* in, float* out) {
  const float reversed = opposite<0>(in[thread()]);
  const float restored = opposite<1>(reversed);
  out[thread()] = opposite<2>(restored);
}

QUIRE_DEVICE const char* same_array() {
  QUIRE_SHARED(array, char[3]);
  return array;
}

__global__ void shared_addresses_kernel(int* out) {
  QUIRE_DYNAMIC_SHARED(dynamic);
  QUIRE_SHARED(odd, char[5]);
  QUIRE_SHARED(grid, float[3][5]);
  const auto modulo = [](const void* address, unsigned step) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) % step);
  };
  out[0] = modulo(dynamic, 1024);
  out[1] = modulo(odd, 16);
  out[2] = modulo(grid, 16);
  out[3] = same_array() == same_array() ? 1 : 0;
  out[4] = static_cast<int>(sizeof(grid));
  out[5] = static_cast<const void*>(odd) == static_cast<const void*>(grid) ? 1 : 0;
}

template <typename T>
__global__ void atomic_kernel(AtomicKind kind, T* place, T* olds) {
  const auto number = static_cast<T>(blockIdx.x * blockDim.x + threadIdx.x);
  T old = 0;
  switch (kind) {
    case AtomicKind::kAdd:
      old = atomicAdd(place, number);
      break;
    case AtomicKind::kExchange:
      old = atomicExch(place, number);
      break;
    default:
      if constexpr (!std::is_same_v<T, float>) {
        if (kind == AtomicKind::kMax) old = atomicMax(place, number);
        if (kind == AtomicKind::kMin) old = atomicMin(place, number);
        if (kind == AtomicKind::kCompareAndSwap) {
          T seen = *place;
          do {
            old = seen;
            seen = atomicCAS(place, old, static_cast<T>(old + number));
          } while (seen != old);
        }
      }
  }
  olds[blockIdx.x * blockDim.x + threadIdx.x] = old;
}

template <typename T>
__global__ void atomic_add_shared_kernel(T* sums) {
  QUIRE_SHARED(sum, T);
  if (thread() == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, static_cast<T>(thread()));
  __syncthreads();
  if (thread() == 0) sums[blockIdx.x] = sum;
}

__global__ void load_matrices_kernel(bool transposed, const uint4* rows, const int* order, std::uint32_t* r) {
  QUIRE_SHARED(shared, uint4[32]);
  shared[thread()] = rows[thread()];
  __syncwarp();
  std::uint32_t mine[4];
  if (transposed) {
    ldmatrix_x4_trans(mine, shared + order[thread()]);
  } else {
    ldmatrix_x4(mine, shared + order[thread()]);
  }
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) r[thread() * 4 + i] = mine[i];
}

template <typename T>
__global__ void multiply_kernel(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  std::uint32_t a_mine[4];
  float d_mine[4];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    a_mine[i] = a[thread() * 4 + i];
    d_mine[i] = d[thread() * 4 + i];
  }
  mma_m16n8k16<T>(d_mine, a_mine, b[thread() * 2], b[thread() * 2 + 1]);
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) d[thread() * 4 + i] = d_mine[i];
}

__global__ void copy_partly_kernel(const unsigned char* in, const int* num_bytes, uint4* out) {
  QUIRE_SHARED(copied, uint4[32]);
  cp_async_16(copied + thread(), in + thread() * 16, num_bytes[thread()]);
  cp_async_commit();
  cp_async_wait<0>();
  out[thread()] = copied[thread()];
}

__global__ void copy_in_stages_kernel(const float* in, float* out, int tiles) {
  QUIRE_SHARED(stages, float[3][128]);
  const auto fetch = [&](int tile) {
    if (tile < tiles && thread() < 32) cp_async_16(stages[tile % 3] + thread() * 4, in + tile * 128 + thread() * 4, 16);
    cp_async_commit();
  };
  fetch(0);
  fetch(1);
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<1>();
    __syncthreads();
    fetch(tile + 2);
    out[tile * 128 + 127 - thread()] = stages[tile % 3][127 - thread()];
  }
  cp_async_wait<0>();
}

template <typename T>
__global__ void pack_kernel(const float2* in, std::uint32_t* out, int pairs) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < static_cast<unsigned>(pairs)) out[i] = pack2<T>(in[i].x, in[i].y);
}

template <typename T>
__global__ void unpack_kernel(const std::uint32_t* in, float2* out, int pairs) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < static_cast<unsigned>(pairs)) out[i] = unpack2<T>(in[i]);
}

__global__ void float_functions_kernel(const float* x, float* out, int n) {
  if (thread() >= n) return;
  const float v = x[thread()];
  float* const mine = out + thread() * kNumFloatFunctions;
  mine[0] = exp2_approx(v);
  mine[1] = __expf(v);
  mine[2] = rsqrtf(v);
  mine[3] = __logf(v);
  mine[4] = __fdividef(1.0f, v);
  mine[5] = fmaf(v, v, 1.0f);
  mine[6] = max(v, 0.5f);
  mine[7] = min(v, 0.5f);
  mine[8] = static_cast<float>(__float2int_rn(v));
}

__global__ void bit_functions_kernel(const unsigned* x, unsigned* out, int n) {
  if (thread() >= n) return;
  const unsigned v = x[thread()];
  unsigned* const mine = out + thread() * kNumBitFunctions;
  mine[0] = static_cast<unsigned>(__popc(v));
  mine[1] = static_cast<unsigned>(__ffs(static_cast<int>(v)));
  mine[2] = static_cast<unsigned>(__clz(static_cast<int>(v)));
  mine[3] = __brev(v);
  mine[4] = __umulhi(v, 0x9e3779b9u);
  mine[5] = __float_as_uint(__uint_as_float(v | 0x3f800000u));
  mine[6] = max(v, 77u);
  mine[7] = min(v, 77u);
}

__global__ void copy_by_vectors_kernel(const float* in, float* out) {
  QUIRE_SHARED(vectors, float4[32]);
  const unsigned at = blockIdx.x * 32 + threadIdx.x;
  store_shared(vectors + thread(), load_global(reinterpret_cast<const float4*>(in) + at));
  __syncwarp();
  store_global(reinterpret_cast<float4*>(out) + (at ^ 1u), load_shared(vectors + (thread() ^ 1)));
}

__global__ void touch_far_kernel(std::uint8_t* x, std::int64_t first, std::int64_t step) {
  std::uint8_t* const mine = x + first + step * thread();
  store_global(mine, static_cast<std::uint8_t>(load_global(mine) + 1));
}

LaunchShape one_block(unsigned threads, std::size_t dynamic_bytes = 0) { return {dim3(1), dim3(threads), dynamic_bytes}; }

}  // namespace

template <typename T>
void shuffle(ShuffleKind kind, int width, const int* operands, const T* in, T* out) {
  launch(kStream, shuffle_kernel<T>, one_block(32), kind, width, operands, in, out);
}
template void shuffle(ShuffleKind, int, const int*, const int*, int*);
template void shuffle(ShuffleKind, int, const int*, const unsigned*, unsigned*);
template void shuffle(ShuffleKind, int, const int*, const float*, float*);
template void shuffle(ShuffleKind, int, const int*, const double*, double*);
template void shuffle(ShuffleKind, int, const int*, const unsigned long long*, unsigned long long*);

void vote_in_halves(const int* predicates, unsigned* out) { launch(kStream, vote_kernel, one_block(32), true, predicates, out); }
void vote(const int* predicates, unsigned* out) { launch(kStream, vote_kernel, one_block(32), false, predicates, out); }

void thread_places(const unsigned (&grid)[3], const unsigned (&block)[3], int* out) {
  launch(kStream, thread_places_kernel, {dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2])}, out);
}

void reverse_twice(const float* in, float* out) { launch(kStream, reverse_twice_kernel, one_block(256), in, out); }
void shared_addresses(int* out) { launch(kStream, shared_addresses_kernel, one_block(1, 100), out); }

template <typename T>
void atomic_update(AtomicKind kind, T* place, T* olds) {
  launch(kStream, atomic_kernel<T>, {dim3(4), dim3(64)}, kind, place, olds);
}
template <typename T>
void atomic_add_shared(T* sums) {
  launch(kStream, atomic_add_shared_kernel<T>, {dim3(4), dim3(64)}, sums);
}
template void atomic_update(AtomicKind, int*, int*);
template void atomic_update(AtomicKind, unsigned*, unsigned*);
template void atomic_update(AtomicKind, unsigned long long*, unsigned long long*);
template void atomic_update(AtomicKind, float*, float*);
template void atomic_add_shared(int*);
template void atomic_add_shared(float*);

void load_matrices(bool transposed, const std::uint16_t* rows, const int* order, std::uint32_t* r) {
  launch(kStream, load_matrices_kernel, one_block(32), transposed, reinterpret_cast<const uint4*>(rows), order, r);
}
void multiply_fragments(int type, const std::uint32_t* a, const std::uint32_t* b, float* d) {
  launch(kStream, type == 0 ? multiply_kernel<Half> : multiply_kernel<BFloat16>, one_block(32), a, b, d);
}

void copy_partly(const unsigned char* in, const int* num_bytes, unsigned char* out) {
  launch(kStream, copy_partly_kernel, one_block(32), in, num_bytes, reinterpret_cast<uint4*>(out));
}
void copy_in_stages(const float* in, float* out, int tiles) {
  launch(kStream, copy_in_stages_kernel, one_block(128), in, out, tiles);
}

void pack_pairs(int type, const float* in, std::uint32_t* out, int pairs) {
  launch(kStream, type == 0 ? pack_kernel<Half> : pack_kernel<BFloat16>,
         {dim3(static_cast<unsigned>((pairs + 255) / 256)), dim3(256)}, reinterpret_cast<const float2*>(in), out, pairs);
}
void unpack_pairs(int type, const std::uint32_t* in, float* out, int pairs) {
  launch(kStream, type == 0 ? unpack_kernel<Half> : unpack_kernel<BFloat16>,
         {dim3(static_cast<unsigned>((pairs + 255) / 256)), dim3(256)}, in, reinterpret_cast<float2*>(out), pairs);
}

void float_functions(const float* x, float* out, int n) { launch(kStream, float_functions_kernel, one_block(256), x, out, n); }
void bit_functions(const unsigned* x, unsigned* out, int n) { launch(kStream, bit_functions_kernel, one_block(256), x, out, n); }

void copy_by_vectors(const float* in, float* out, int n) {
  launch(kStream, copy_by_vectors_kernel, {dim3(static_cast<unsigned>(n / 128)), dim3(32)}, in, out);
}
void touch_far(std::uint8_t* x, std::int64_t first, std::int64_t step) {
  launch(kStream, touch_far_kernel, one_block(32), x, first, step);
}

}  // namespace quire::cuda
