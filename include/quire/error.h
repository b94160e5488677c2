// Errors of the library. Everything that can fail because of the caller's input, a file, or a device throws `Error`
// with a code and a message that names the field and the value. The library never exits or aborts the process.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace quire {

enum class ErrorCode {
  kInvalidArgument,  // a request, option or call is wrong; the message names the field and the value
  kInvalidFile,      // a model or tokenizer file is broken or inconsistent; the message names file, field and value
  kUnsupported,      // well-formed, but outside what quire implements (architecture, tensor type, chat template)
  kNotFound,         // a file or an id does not exist
  kOutOfMemory,      // the device or host cannot give the memory asked for
  kIo,               // the operating system refused a read or a map
  kUnavailable,      // the engine accepts no more work: it is draining, shut down, full, or its device failed
  kDevice,           // a device call failed
  kInternal,         // a broken invariant of quire itself: please report it
};

// "invalid_argument", "invalid_file", ...: stable names for logs and APIs.
std::string_view to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace quire
