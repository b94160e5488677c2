// Refusals of launchers. Declared without fmt, which nvcc does not compile, and defined by the host compiler in check.cc.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace quire::cuda {

// Throws Error(kInvalidArgument): "rms_norm: x is F32 [4, 576], must be [R, H] BF16 or F16".
[[noreturn]] void refuse(const char* op, const char* field, const TensorView& value, const char* rule);
// Throws Error(kUnsupported): "decode_attention: head_size is 72, must be 64, 80, 96, 128 or 256".
[[noreturn]] void refuse(const char* op, const char* field, std::int64_t value, const char* rule);
// Throws Error(kDevice): "kernel launch: invalid configuration argument (cudaErrorInvalidConfiguration)".
[[noreturn]] void fail_call(const char* call, const char* reason, const char* name);

}  // namespace quire::cuda
