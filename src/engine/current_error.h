// current_error: whatever is being caught, as the one kind of exception that leaves the library. For the rim of the engine, where
// the standard library's exceptions and those of callbacks end.
#pragma once

#include "quire/error.h"

namespace quire {

// The exception being handled: itself if it is an Error, kOutOfMemory for a lack of memory, else kInternal with its message.
// Throws nothing, for want of memory neither. REQUIRES: called in a handler.
Error current_error() noexcept;

// Calls `body`; what it throws leaves as an Error.
template <typename F>
auto throwing_errors(F body) {
  try {
    return body();
  } catch (...) {
    throw current_error();
  }
}

}  // namespace quire
