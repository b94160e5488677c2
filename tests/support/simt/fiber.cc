#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(SIMT_UCONTEXT)
// Saves what the System V ABI lets a callee keep and continues another stack. The jump in place of a `ret` is on purpose: the
// processor predicts returns by its own record of calls, which a switched stack makes wrong every time (5 x the time).
extern "C" void simt_switch_stack(void** save_stack_pointer, void* stack_pointer);
asm(R"(
.text
.globl simt_switch_stack
.hidden simt_switch_stack
.type simt_switch_stack, @function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size simt_switch_stack, . - simt_switch_stack
)");
#endif

namespace simt {
namespace {

constexpr std::size_t kGuardBytes = 64 * 1024;

// Who left the stack last; only for the bookkeeping of the first switch to a fiber.
Fiber* last_left = nullptr;

}  // namespace

Fiber::Fiber(void (*entry)()) : entry_(entry) {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<char*>(memory) + kGuardBytes;
  if (mprotect(stack_, kStackBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
#if defined(SIMT_ASAN)
  bottom_ = stack_;
  bytes_ = kStackBytes;
#endif
}

Fiber::Fiber(Fiber&& other) noexcept : entry_(other.entry_), stack_(std::exchange(other.stack_, nullptr)) {
#if defined(SIMT_ASAN)
  bottom_ = stack_;
  bytes_ = kStackBytes;
#endif
}

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
  munmap(static_cast<char*>(stack_) - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::prepare() {
#if defined(SIMT_ASAN)
  // Frames that nobody returned from leave their red zones; those of the entry were cleared at its call of finish(), which does
  // not return.
  if (!left_by_entry_) ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
  fake_stack_ = nullptr;
  left_by_entry_ = false;
#endif
#if defined(SIMT_UCONTEXT)
  getcontext(&machine_);
  machine_.uc_stack.ss_sp = stack_;
  machine_.uc_stack.ss_size = kStackBytes;
  machine_.uc_link = nullptr;
  makecontext(&machine_, entry_, 0);
#else
  // What simt_switch_stack pops: six registers and the entry, which finds the stack as after a call from nowhere.
  void* frame[8] = {};
  frame[6] = reinterpret_cast<void*>(entry_);
  stack_pointer_ = static_cast<char*>(stack_) + kStackBytes - sizeof(frame);
  std::memcpy(stack_pointer_, frame, sizeof(frame));
#endif
}

void Fiber::leave(Fiber& next, [[maybe_unused]] bool for_good) {
  last_left = this;
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, next.bottom_, next.bytes_);
#endif
#if defined(SIMT_UCONTEXT)
  swapcontext(&machine_, &next.machine_);
#else
  simt_switch_stack(&stack_pointer_, next.stack_pointer_);
#endif
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

bool Fiber::overflows_at(const void* address) const {
  return address < stack_ && address >= static_cast<const char*>(stack_) - kGuardBytes;
}

void Fiber::switch_to(Fiber& next) { leave(next, false); }

void Fiber::finish(Fiber& next) {
#if defined(SIMT_ASAN)
  left_by_entry_ = true;
#endif
  abandon(next);
}

void Fiber::abandon(Fiber& next) {
  leave(next, true);
  std::abort();  // nobody may continue a finished fiber
}

void Fiber::started() {
#if defined(SIMT_ASAN)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  last_left->bottom_ = bottom;
  last_left->bytes_ = bytes;
#endif
}

}  // namespace simt
