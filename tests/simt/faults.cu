// The planted faults. Every kernel is one block that computes y = x + 1, by a detour through what it is about.
#include "tests/simt/faults.h"

#include "kernels/cuda/intrinsics.cuh"
#include "kernels/cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kLowerLanes = 0x0000ffffu;

using Kernel = void (*)(bool, const float*, float*);

template <Kernel kKernel, unsigned kThreads = 256, std::size_t kDynamicBytes = 0>
void run(bool faulty, const float* x, float* y) {
  launch(Stream{}, kKernel, {dim3(1), dim3(kThreads), kDynamicBytes}, faulty, x, y);
}

QUIRE_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
QUIRE_DEVICE int lane() { return thread() % 32; }
QUIRE_DEVICE int warp() { return thread() / 32; }

// ---- barriers

__global__ void skips_a_barrier(bool faulty, const float* x, float* y) {
  if (!faulty || warp() != 1) __syncthreads();
  y[thread()] = x[thread()] + 1;
  __syncthreads();
}

__global__ void returns_before_a_barrier(bool faulty, const float* x, float* y) {
  y[thread()] = x[thread()] + 1;
  if (faulty && warp() == 2) return;
  __syncthreads();
}

__global__ void waits_in_two_places(bool faulty, const float* x, float* y) {  // in a block of 32 threads
  if (faulty && thread() == 5) __syncthreads();
  const float zero = __shfl_sync(kAllLanes, 0.0f, 0);
  for (int i = thread(); i < kFaultSize; i += 32) y[i] = x[i] + 1 + zero;
}

QUIRE_DEVICE float wait_below(float x, int levels) {
  volatile float frame[300];
  for (volatile float& value : frame) value = x;
  if (levels > 0) return wait_below(frame[1], levels - 1) + frame[2] - frame[3];
  __syncthreads();
  return frame[0];
}

__global__ void waits_deep_in_its_calls(bool faulty, const float* x, float* y) {
  if (faulty && thread() == 255) __syncthreads();
  y[thread()] = wait_below(x[thread()] + 1, 8);
}

// ---- warp operations

__global__ void mask_without_the_caller(bool faulty, const float* x, float* y) {
  const unsigned mask = faulty ? kLowerLanes : kAllLanes;
  y[thread()] = x[thread()] + 1 + __shfl_sync(mask, 0.0f, 0);
}

__global__ void reads_outside_of_the_mask(bool faulty, const float* x, float* y) {
  const unsigned mask = lane() < 16 ? kLowerLanes : ~kLowerLanes;
  const float other = __shfl_xor_sync(mask, x[thread()], faulty ? 16 : 1);
  y[thread()] = (faulty ? other : x[thread()]) + 1;
}

__global__ void different_operations_meet(bool faulty, const float* x, float* y) {
  float value = x[thread()];
  if (faulty && lane() >= 16) {
    value = __shfl_down_sync(kAllLanes, value, 0);
  } else {
    value = __shfl_xor_sync(kAllLanes, value, 0);
  }
  y[thread()] = value + 1;
}

__global__ void masks_overlap(bool faulty, const float* x, float* y) {
  const unsigned lower = faulty ? 0x0001ffffu : kLowerLanes;
  const unsigned mask = lane() < 16 ? lower : ~kLowerLanes;
  y[thread()] = __shfl_sync(mask, x[thread()], lane()) + 1;
}

__global__ void returns_before_a_shuffle(bool faulty, const float* x, float* y) {
  if (faulty && lane() == 3) return;
  y[thread()] = __shfl_sync(kAllLanes, x[thread()], lane()) + 1;
}

__global__ void mask_of_missing_lanes(bool faulty, const float* x, float* y) {  // in a block of 48 threads
  for (int i = thread(); i < kFaultSize; i += 48) y[i] = x[i] + 1;
  const unsigned mask = warp() == 0 || faulty ? kAllLanes : kLowerLanes;
  __syncwarp(mask);
}

__global__ void width_of_three(bool faulty, const float* x, float* y) {
  y[thread()] = __shfl_xor_sync(kAllLanes, x[thread()], 0, faulty ? 3 : 4) + 1;
}

__global__ void matrix_in_half_a_warp(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(rows, float[256][4]);
  for (float& value : rows[thread()]) value = x[thread()];
  __syncthreads();
  std::uint32_t r[4] = {};
  if (!faulty || lane() < 16) ldmatrix_x4(r, rows[warp() * 32 + lane()]);
  y[thread()] = x[thread()] + 1;
}

// ---- asynchronous copies

__global__ void never_waits(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread(), 16);
  cp_async_commit();
  if (!faulty) cp_async_wait<0>();
  __syncthreads();
  y[thread()] = x[thread()] + 1;
}

__global__ void never_commits(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread(), 16);
  if (!faulty) cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  y[thread()] = copied[thread()] + 1;
}

__global__ void waits_for_one_group_too_few(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread(), 16);
  cp_async_commit();
  if (faulty) {
    cp_async_wait<1>();
  } else {
    cp_async_wait<0>();
  }
  __syncthreads();
  y[thread()] = copied[thread()] + 1;
  cp_async_wait<0>();
}

__global__ void copies_from_outside(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  const float* const source = x + thread() + (faulty && thread() == 252 ? 4 : 0);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), source, 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  y[thread()] = copied[thread()] + 1;
}

__global__ void copies_to_outside(bool faulty, const float* x, float* y) {  // with 1,024 dynamic bytes
  QUIRE_DYNAMIC_SHARED(bytes);
  float* const copied = reinterpret_cast<float*>(bytes);
  const int shift = faulty && thread() == 252 ? 4 : 0;
  if (thread() % 4 == 0) cp_async_16(copied + thread() + shift, x + thread(), 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  y[thread()] = copied[thread()] + 1;
}

__global__ void copies_from_an_odd_address(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread() + (faulty && thread() == 8 ? 1 : 0), 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  y[thread()] = copied[thread()] + 1;
}

// ---- addresses

__global__ void loads_from_an_odd_address(bool faulty, const float* x, float* y) {
  if (thread() >= 64) return;
  const float* const source = x + 4 * thread() + (faulty && thread() == 7 ? 2 : 0);
  const float4 value = load_global(reinterpret_cast<const float4*>(source));
  store_global(reinterpret_cast<float4*>(y) + thread(), make_float4(value.x + 1, value.y + 1, value.z + 1, value.w + 1));
}

__global__ void loads_from_outside(bool faulty, const float* x, float* y) {
  store_global(y + thread(), load_global(x + thread() + (faulty ? 1 : 0)) + 1);
}

__global__ void stores_outside(bool faulty, const float* x, float* y) {
  store_global(y + thread() - (faulty ? 1 : 0), load_global(x + thread()) + 1);
}

__global__ void reads_far_outside(bool faulty, const float* x, float* y) {
  y[thread()] = x[thread() + (faulty && thread() == 9 ? 1'000'000 : 0)] + 1;
}

__global__ void reads_null(bool faulty, const float* x, float* y) {
  const volatile float* const source = faulty && thread() == 9 ? nullptr : x + thread();
  y[thread()] = *source + 1;
}

__global__ void writes_beside_a_buffer(bool faulty, const float* x, float* y) {
  y[thread()] = x[thread()] + 1;
  if (faulty && thread() == 0) y[-1] = 0;
}

__global__ void writes_beside_an_array(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = x[thread()];
  float* const end = values + 256;
  if (faulty && thread() == 0) *end = 0;
  y[thread()] = values[thread()] + 1;
}

__global__ void too_large_an_array(bool faulty, const float* x, float* y) {
  y[thread()] = x[thread()] + 1;
  if (faulty) {
    QUIRE_SHARED(large, float[12 * 1024 + 1]);
    large[thread()] = 0;
  } else {
    QUIRE_SHARED(large, float[12 * 1024]);
    large[thread()] = 0;
  }
}

float descend(float x, int levels) {
  volatile float frame[512];
  for (volatile float& value : frame) value = x;
  return levels == 0 ? frame[0] : descend(frame[1], levels - 1) + frame[2] - frame[3];
}

__global__ void overflows_its_stack(bool faulty, const float* x, float* y) {
  y[thread()] = descend(x[thread()] + 1, faulty && thread() == 1 ? 1000 : 3);
}

// ---- races

__global__ void reads_before_the_barrier(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = x[thread()] + 1;
  if (!faulty) __syncthreads();
  const float other = values[255 - thread()];
  y[255 - thread()] = other;
}

__global__ void loads_before_the_barrier(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  store_shared(values + thread(), x[thread()] + 1);
  if (!faulty) __syncthreads();
  y[255 - thread()] = load_shared(values + 255 - thread());
}

__global__ void overwrites_before_the_barrier(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = x[thread()];
  __syncthreads();
  const float other = values[255 - thread()];
  if (!faulty) __syncthreads();
  values[thread()] = other + 1;
  __syncthreads();
  y[thread()] = values[255 - thread()];
}

__global__ void two_write_one_place(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(last, int);
  if (faulty || thread() == 255) last = thread();
  __syncthreads();
  y[thread()] = x[thread()] + static_cast<float>(last) - 254;
}

__global__ void exchanges_without_syncwarp(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = x[thread()] + 1;
  if (!faulty) __syncwarp();
  y[thread() ^ 1] = values[thread() ^ 1];
}

__global__ void takes_a_shuffle_for_a_barrier(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = __shfl_sync(kAllLanes, x[thread()], lane()) + 1;
  if (!faulty) __syncwarp();
  const float own = __shfl_sync(kAllLanes, 0.0f, lane());
  y[thread() ^ 1] = values[thread() ^ 1] + own;
}

__global__ void syncs_half_of_the_warp(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  values[thread()] = x[thread()] + 1;
  __syncwarp(lane() < 16 ? kLowerLanes : ~kLowerLanes);
  const int other = thread() ^ (faulty ? 16 : 8);
  y[other] = values[other];
}

__global__ void reads_what_nobody_wrote(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(values, float[256]);
  if (!faulty || thread() != 77) values[thread()] = x[thread()];
  y[thread()] = values[thread()] + 1;
}

__global__ void reads_beyond_an_array_within_its_struct(bool faulty, const float* x, float* y) {
  struct Scratch {
    float values[256], nobodys[4];
  };
  QUIRE_SHARED(scratch, Scratch);
  const float* const values = scratch.values;
  scratch.values[thread()] = x[thread()];
  __syncthreads();
  y[thread()] = values[thread() + (faulty ? 1 : 0)] + 1;
}

__global__ void reads_before_the_copy_landed(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread(), 16);
  cp_async_commit();
  if (faulty) {
    y[thread()] = copied[thread() / 4 * 4] + static_cast<float>(thread() % 4) + 1;
    __syncthreads();
    cp_async_wait<0>();
  } else {
    cp_async_wait<0>();
    __syncthreads();
    y[thread()] = copied[thread()] + 1;
  }
}

__global__ void no_barrier_behind_the_wait(bool faulty, const float* x, float* y) {
  QUIRE_SHARED(copied, float[256]);
  if (thread() % 4 == 0) cp_async_16(copied + thread(), x + thread(), 16);
  cp_async_commit();
  cp_async_wait<0>();
  if (!faulty) __syncthreads();
  y[255 - thread()] = copied[255 - thread()] + 1;
}

// Two buffers, tiles of 64: the barrier at the end of the loop matters from the third tile on.
__global__ void refills_a_buffer_in_use(bool faulty, const float* x, float* y) {  // in a block of 64 threads
  QUIRE_SHARED(tiles, float[2][64]);
  const auto fetch = [&](int tile) {
    if (tile < 4 && thread() < 16) cp_async_16(tiles[tile % 2] + thread() * 4, x + tile * 64 + thread() * 4, 16);
    cp_async_commit();
  };
  fetch(0);
  for (int tile = 0; tile < 4; ++tile) {
    fetch(tile + 1);
    cp_async_wait<1>();
    __syncthreads();
    y[tile * 64 + 63 - thread()] = tiles[tile % 2][63 - thread()] + 1;
    if (!faulty) __syncthreads();
  }
  cp_async_wait<0>();
}

constexpr PlantedFault kFaults[] = {
    {"skips_a_barrier", Finding::kError, "this thread is in __syncthreads at faults.cu:[0-9]+, others wait at faults.cu:[0-9]+",
     run<skips_a_barrier>},
    {"returns_before_a_barrier", Finding::kError, "divergent barrier", run<returns_before_a_barrier>},
    {"waits_deep_in_its_calls", Finding::kError, "in __syncthreads at faults.cu:[0-9]+, others wait at faults.cu:[0-9]+",
     run<waits_deep_in_its_calls>},
    {"waits_in_two_places", Finding::kError, "deadlock: ", run<waits_in_two_places, 32>},
    {"mask_without_the_caller", Finding::kError, "mask 0xffff does not name the calling lane", run<mask_without_the_caller>},
    {"reads_outside_of_the_mask", Finding::kError, "does not name", run<reads_outside_of_the_mask>},
    {"different_operations_meet", Finding::kError, "meet in different operations", run<different_operations_meet>},
    {"masks_overlap", Finding::kError, "overlaps mask|names lanes that have returned", run<masks_overlap>},
    {"returns_before_a_shuffle", Finding::kError, "returned", run<returns_before_a_shuffle>},
    {"mask_of_missing_lanes", Finding::kError, "names lanes that do not exist", run<mask_of_missing_lanes, 48>},
    {"width_of_three", Finding::kError, "width is 3", run<width_of_three>},
    {"matrix_in_half_a_warp", Finding::kError,
     "ldmatrix_x4 at faults.cu:[0-9]+(: mask 0xffffffff names lanes that have returned)?", run<matrix_in_half_a_warp>},
    {"never_waits", Finding::kError, "copies never waited for, the first issued at faults.cu:", run<never_waits>},
    {"never_commits", Finding::kError, "copies never waited for|before the asynchronous copy has landed", run<never_commits>},
    {"waits_for_one_group_too_few", Finding::kRace, "before the asynchronous copy has landed", run<waits_for_one_group_too_few>},
    {"copies_from_outside", Finding::kError, "at offset 1024 of a device buffer of 1024 bytes", run<copies_from_outside>},
    {"copies_to_outside", Finding::kError, "the destination is outside", run<copies_to_outside, 256, 1024>},
    {"copies_from_an_odd_address", Finding::kError, "the source is not 16-byte aligned", run<copies_from_an_odd_address>},
    {"loads_from_an_odd_address", Finding::kError, "not a multiple of 16", run<loads_from_an_odd_address>},
    {"loads_from_outside", Finding::kError, "load_global at faults.cu:", run<loads_from_outside>},
    {"stores_outside", Finding::kError, "4 bytes before a device buffer of 1024 bytes", run<stores_outside>},
    {"reads_far_outside", Finding::kStray, "touches address", run<reads_far_outside>},
    {"reads_null", Finding::kStray, "touches address", run<reads_null>},
    {"writes_beside_a_buffer", Finding::kStray, "beside a device buffer of 1024 bytes", run<writes_beside_a_buffer>},
    {"writes_beside_an_array", Finding::kStray, "beside", run<writes_beside_an_array>},
    {"too_large_an_array", Finding::kError, "the shared array large of 49156 bytes does not fit", run<too_large_an_array>},
    {"overflows_its_stack", Finding::kStray, "its stack of", run<overflows_its_stack>},
    {"reads_before_the_barrier", Finding::kRace, "", run<reads_before_the_barrier>},
    {"loads_before_the_barrier", Finding::kRace, " at faults.cu:[0-9]+", run<loads_before_the_barrier>},
    {"overwrites_before_the_barrier", Finding::kRace, "", run<overwrites_before_the_barrier>},
    {"two_write_one_place", Finding::kRace, "write after write", run<two_write_one_place>},
    {"exchanges_without_syncwarp", Finding::kRace, "", run<exchanges_without_syncwarp>},
    {"takes_a_shuffle_for_a_barrier", Finding::kHiddenRace, "read after write", run<takes_a_shuffle_for_a_barrier>},
    {"syncs_half_of_the_warp", Finding::kRace, "", run<syncs_half_of_the_warp>},
    {"reads_what_nobody_wrote", Finding::kRace, "read of uninitialised shared memory: values . 308",
     run<reads_what_nobody_wrote>},
    {"reads_beyond_an_array_within_its_struct", Finding::kRace, "read of uninitialised shared memory: scratch . 1024",
     run<reads_beyond_an_array_within_its_struct>},
    {"reads_before_the_copy_landed", Finding::kRace, "before the asynchronous copy has landed|uninitialised",
     run<reads_before_the_copy_landed>},
    {"no_barrier_behind_the_wait", Finding::kRace, "", run<no_barrier_behind_the_wait>},
    {"refills_a_buffer_in_use", Finding::kRace, "write after read|before the asynchronous copy has landed",
     run<refills_a_buffer_in_use, 64>},
};

}  // namespace

std::span<const PlantedFault> planted_faults() { return kFaults; }

}  // namespace quire::cuda
