#include "engine/current_error.h"

#include <new>
#include <string>

namespace quire {
namespace {

// Made at the start, for it is needed when no memory is left to make it. Copies of an Error share the text and cannot fail.
const Error kNoMemory(ErrorCode::kOutOfMemory, "the host has no more memory (std::bad_alloc)");

}  // namespace

Error current_error() noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return error;
    } catch (const std::bad_alloc&) {
      return kNoMemory;
    } catch (const std::exception& error) {
      return Error(ErrorCode::kInternal, error.what());
    } catch (...) {
      return Error(ErrorCode::kInternal, "an exception of unknown type");
    }
  } catch (...) {  // no memory for the message
    return kNoMemory;
  }
}

}  // namespace quire
