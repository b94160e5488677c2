// AccessFault: while one lives, an access of a kernel to inaccessible memory (the guards around device buffers, the page below a
// thread's stack, null) calls `escape` on the faulting thread's stack, from its top, in place of ending the process. x86-64 only;
// elsewhere, and under AddressSanitizer, which has its own report, it does nothing.
#pragma once

#include <csignal>

namespace simt {

class AccessFault {
 public:
  // Where the code is to go on: `top` is the end of a stack that nobody needs any more.
  struct Escape {
    void* top = nullptr;  // null: the fault is not a kernel's
    void (*entry)() = nullptr;
  };

  // `choose` is called in a signal handler.
  explicit AccessFault(Escape (*choose)());
  ~AccessFault();
  AccessFault(const AccessFault&) = delete;
  AccessFault& operator=(const AccessFault&) = delete;

  // The address of the last fault.
  static const void* address();

 private:
  struct sigaction before_[2] = {};  // of SIGSEGV and SIGBUS
};

}  // namespace simt
