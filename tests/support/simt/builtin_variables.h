// CUDA's built-in variables. The emulator sets them before it lets a thread run.
#pragma once

#include "simt/vector_types.h"

inline uint3 threadIdx = {};
inline uint3 blockIdx = {};
inline dim3 blockDim;
inline dim3 gridDim;
constexpr int warpSize = 32;
