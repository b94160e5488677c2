#include "tests/simt/traffic.h"

#include "kernels/cuda/intrinsics.cuh"
#include "kernels/cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr Stream kStream = nullptr;
const LaunchShape kOneWarp = {dim3(1), dim3(32)};

QUIRE_DEVICE int lane() { return static_cast<int>(threadIdx.x); }

template <Form kForm>
__global__ void load_kernel(const float* x, float* y, int first, int step) {
  const float* const mine = x + first + lane() * step;
  const float value = kForm == Form::kNamed ? load_global(mine) : *mine;
  store_global(y + lane(), value);
}

template <Form kForm>
__global__ void store_kernel(float* y, int first, int step) {
  float* const mine = y + first + lane() * step;
  const auto value = static_cast<float>(lane());
  if constexpr (kForm == Form::kNamed) {
    store_global(mine, value);
  } else {
    *mine = value;
  }
}

template <Form kForm>
__global__ void exchange_kernel(float* y, int step) {
  QUIRE_SHARED(values, float[33 * 32]);
  float* const mine = values + lane() * step;
  const auto value = static_cast<float>(lane());
  if (step != 0 || lane() == 0) {
    if constexpr (kForm == Form::kNamed) {
      store_shared(mine, value);
    } else {
      *mine = value;
    }
  }
  __syncwarp();
  store_global(y + lane(), kForm == Form::kNamed ? load_shared(mine) : *mine);
}

__global__ void exchange_vectors_kernel(float* y, int step) {
  QUIRE_SHARED(values, float4[32 * 8]);
  const auto value = static_cast<float>(lane());
  store_shared(values + lane() * step, make_float4(value, value, value, value));
  __syncwarp();
  store_global(y + lane(), load_shared(values + lane() * step).w);
}

__global__ void load_swizzled_kernel(const float* x, std::uint32_t* r, bool swizzled) {
  QUIRE_SHARED(rows, float4[32][8]);
  const auto place = [&](int row, int piece) { return &rows[row][swizzled ? piece ^ (row % 8) : piece]; };
  for (int row = 0; row < 32; ++row) {
    if (lane() < 8) cp_async_16(place(row, lane()), x + (row * 8 + lane()) * 4, 16);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  std::uint32_t mine[4];
  ldmatrix_x4(mine, place(lane(), 0));
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) store_global(r + lane() * 4 + i, mine[i]);
}

template <Form kForm>
__global__ void read_once_kernel(const float* x, float* y) {
  QUIRE_SHARED(copied, float[32]);
  if (lane() < 8) cp_async_16(copied + lane() * 4, x + lane() * 4, 16);
  cp_async_commit();
  const float second = kForm == Form::kNamed ? load_global(x + 64 + lane()) : x[64 + lane()];
  cp_async_wait<0>();
  __syncwarp();
  store_global(y + lane(), load_shared(copied + lane()) + second);
}

}  // namespace

void load_strided(Form form, const float* x, float* y, int first, int step) {
  launch(kStream, form == Form::kNamed ? load_kernel<Form::kNamed> : load_kernel<Form::kPlain>, kOneWarp, x, y, first, step);
}
void store_strided(Form form, float* y, int first, int step) {
  launch(kStream, form == Form::kNamed ? store_kernel<Form::kNamed> : store_kernel<Form::kPlain>, kOneWarp, y, first, step);
}
void exchange_strided(Form form, float* y, int step) {
  launch(kStream, form == Form::kNamed ? exchange_kernel<Form::kNamed> : exchange_kernel<Form::kPlain>, kOneWarp, y, step);
}
void exchange_vectors(float* y, int step) { launch(kStream, exchange_vectors_kernel, kOneWarp, y, step); }
void load_swizzled(const float* x, std::uint32_t* r, bool swizzled) {
  launch(kStream, load_swizzled_kernel, kOneWarp, x, r, swizzled);
}
void read_once(Form form, const float* x, float* y) {
  launch(kStream, form == Form::kNamed ? read_once_kernel<Form::kNamed> : read_once_kernel<Form::kPlain>, kOneWarp, x, y);
}

}  // namespace quire::cuda
