#include "simt/access_fault.h"

#include <ucontext.h>

#include <array>

#include "simt/fiber.h"

namespace simt {
namespace {

const void* last_address = nullptr;

#if defined(__x86_64__) && !defined(SIMT_ASAN)
constexpr std::array kSignals = {SIGSEGV, SIGBUS};
AccessFault::Escape (*choose_escape)() = nullptr;
alignas(16) std::array<char, 64 * 1024> handler_stack;  // the thread's own may be what overflowed

void handle(int signal, siginfo_t* fault, void* machine) {
  const AccessFault::Escape escape = choose_escape();
  if (escape.top == nullptr) {
    std::signal(signal, SIG_DFL);  // the instruction runs again and ends the process
    return;
  }
  last_address = fault->si_addr;
  // Returning from here continues in escape.entry, with the stack as after a call.
  auto& registers = static_cast<ucontext_t*>(machine)->uc_mcontext.gregs;
  registers[REG_RIP] = reinterpret_cast<greg_t>(escape.entry);
  registers[REG_RSP] = reinterpret_cast<greg_t>(escape.top) - 8;
}
#endif

}  // namespace

#if defined(__x86_64__) && !defined(SIMT_ASAN)

AccessFault::AccessFault(Escape (*choose)()) {
  choose_escape = choose;
  stack_t stack = {};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

AccessFault::~AccessFault() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

#else

AccessFault::AccessFault(Escape (*)()) {}
AccessFault::~AccessFault() = default;

#endif

const void* AccessFault::address() { return last_address; }

}  // namespace simt
