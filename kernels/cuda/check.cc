#include "kernels/cuda/check.h"

#include "core/check.h"

namespace quire::cuda {

void refuse(const char* op, const char* field, const TensorView& value, const char* rule) {
  fail(ErrorCode::kInvalidArgument, "{}: {} is {}, must be {}", op, field, value.describe(), rule);
}

void refuse(const char* op, const char* field, std::int64_t value, const char* rule) {
  fail(ErrorCode::kUnsupported, "{}: {} is {}, must be {}", op, field, value, rule);
}

void fail_call(const char* call, const char* reason, const char* name) {
  fail(ErrorCode::kDevice, "{}: {} ({})", call, reason, name);
}

}  // namespace quire::cuda
