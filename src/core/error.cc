#include "quire/error.h"

#include "core/check.h"

namespace quire {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kInvalidFile:
      return "invalid_file";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void fail_check(std::string_view condition, std::string_view detail, const char* file, int line) {
  throw Error(ErrorCode::kInternal,
              fmt::format("check failed: {}{}{} ({}:{})", condition, detail.empty() ? "" : ": ", detail, file, line));
}

}  // namespace quire
