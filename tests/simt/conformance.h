// Kernels that call one device operation each, for conformance_test.cc. Written against kernels/cuda/ alone, so that the same
// file compiles for a GPU. Every pointer is device memory; one block unless said otherwise; `n` per lane, in the order of the
// lanes.
#pragma once

#include <cstdint>

namespace quire::cuda {

enum class ShuffleKind : int { kIndex, kUp, kDown, kXor };
// out [32] = the shuffle of in [32] with the lane operands [32].
template <typename T>
void shuffle(ShuffleKind kind, int width, const int* operands, const T* in, T* out);
// The lower and the upper half of a warp, each with its own mask. out [32, 3]: ballot, any, all.
void vote_in_halves(const int* predicates, unsigned* out);
void vote(const int* predicates, unsigned* out);

// out [blocks * threads, 3] = threadIdx, blockIdx and warpSize of every thread, in the order of CUDA's linear numbers.
void thread_places(const unsigned (&grid)[3], const unsigned (&block)[3], int* out);

// out [256] = in reversed, through static shared memory by two instances of one template.
void reverse_twice(const float* in, float* out);
// out [8]: the address of dynamic memory modulo 1,024, of static arrays modulo 16, of a static array from two calls.
void shared_addresses(int* out);

enum class AtomicKind : int { kAdd, kMax, kMin, kExchange, kCompareAndSwap };
// Every thread of four blocks of 64 updates the one place with its number; in shared memory each block first, its result then
// added. olds [256]: what each got.
template <typename T>
void atomic_update(AtomicKind kind, T* place, T* olds);
template <typename T>
void atomic_add_shared(T* sums);  // [4], of blocks

// r [32, 4] of the 32 rows of 16 bytes in `rows`, lane i giving the address of row order[i].
void load_matrices(bool transposed, const std::uint16_t* rows, const int* order, std::uint32_t* r);
// d [32, 4] += a [32, 4] * b [32, 2] by fragments; type 0 Half, 1 BFloat16.
void multiply_fragments(int type, const std::uint32_t* a, const std::uint32_t* b, float* d);

// Lane i copies num_bytes[i] bytes of 16; out [32, 16] is what it finds behind the wait.
void copy_partly(const unsigned char* in, const int* num_bytes, unsigned char* out);
// A pipeline of three buffers: out [tiles, 128] = in [tiles, 128], each tile read reversed and written reversed.
void copy_in_stages(const float* in, float* out, int tiles);

// out [n] of pairs; type as above.
void pack_pairs(int type, const float* in, std::uint32_t* out, int pairs);
void unpack_pairs(int type, const std::uint32_t* in, float* out, int pairs);

// out [n, kNumFloatFunctions] and [n, kNumBitFunctions]; the order is that of the sources.
constexpr int kNumFloatFunctions = 9;
constexpr int kNumBitFunctions = 8;
void float_functions(const float* x, float* out, int n);
void bit_functions(const unsigned* x, unsigned* out, int n);

// out[i] = in[i] by vectors of 16 bytes through shared memory; n a multiple of 128.
void copy_by_vectors(const float* in, float* out, int n);
// Adds 1 to the elements first, first + step, ... (32 of them) of a large array.
void touch_far(std::uint8_t* x, std::int64_t first, std::int64_t step);

}  // namespace quire::cuda
