// Fiber: a stack of its own and the place where its code stands; the emulator runs every CUDA thread on one. Switching is
// cooperative and within one OS thread. The stack has inaccessible memory below it and lives as long as the Fiber; it may be
// used again after an abandoned run, whose objects are then not destroyed. Follows AddressSanitizer's rules for stack switches.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1  // may be defined from outside to try it
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif

namespace simt {

class Fiber {
 public:
  static constexpr std::size_t kStackBytes = 256 * 1024;

  // Of the calling thread's own stack, to switch away from and back to.
  Fiber() = default;
  // With a stack. `entry` is called by the first switch to it after prepare(), and must leave by finish().
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(Fiber&& other) noexcept;
  Fiber& operator=(Fiber&&) = delete;

  // Forgets where the code stood: the next switch starts `entry`. REQUIRES: made with a stack, not running.
  void prepare();
  // Parks this fiber and continues `next`. REQUIRES: this is the running one.
  void switch_to(Fiber& next);
  // Leaves this fiber for good, from `entry` itself or from deeper in its calls, whose frames are then given up.
  [[noreturn]] void finish(Fiber& next);
  [[noreturn]] void abandon(Fiber& next);
  // To be called first thing by `entry`.
  static void started();

  // The end of the stack, where its first frame begins.
  void* stack_top() const { return static_cast<char*>(stack_) + kStackBytes; }
  // Whether `address` lies in the inaccessible memory below the stack.
  bool overflows_at(const void* address) const;

 private:
  void leave(Fiber& next, bool for_good);

  void (*entry_)() = nullptr;
  void* stack_ = nullptr;  // lowest address
#if defined(SIMT_UCONTEXT)
  ucontext_t machine_ = {};
#else
  void* stack_pointer_ = nullptr;  // of the parked fiber; its registers lie there
#endif
#if defined(SIMT_ASAN)
  void* fake_stack_ = nullptr;
  bool left_by_entry_ = false;
  const void* bottom_ = nullptr;  // of the stack, whoever owns it
  std::size_t bytes_ = 0;
#endif
};

}  // namespace simt
