// Kernels of one warp whose memory traffic one can count by hand, for traffic_test.cc.
#pragma once

#include <cstdint>

namespace quire::cuda {

// How an access is written: by the named function, or plainly, which only the hooks build sees.
enum class Form { kNamed, kPlain };

// y [32] = x[first + lane * step].
void load_strided(Form form, const float* x, float* y, int first, int step);
// y[first + lane * step] = lane.
void store_strided(Form form, float* y, int first, int step);
// Every lane writes and reads one float of shared memory at lane * step; with step 0 lane 0 alone writes.
void exchange_strided(Form form, float* y, int step);
// Every lane writes and reads 16 bytes of shared memory at lane * step elements of 16 bytes.
void exchange_vectors(float* y, int step);
// ldmatrix_x4 of the first columns of 32 rows of 128 bytes, the 16-byte pieces of row r stored at (piece ^ r % 8) if `swizzled`.
void load_swizzled(const float* x, std::uint32_t* r, bool swizzled);
// y [32] = x [32] + x [64, 96), the first part by cp.async, the second by load_global (named) or plainly.
void read_once(Form form, const float* x, float* y);

}  // namespace quire::cuda
