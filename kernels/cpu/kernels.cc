// The choice of a variant.
#include "kernels/cpu/kernels.h"

#include <array>
#include <cstdlib>

#if QUIRE_HAS_X86_VARIANTS
#include <cpuid.h>
#endif

#include "core/check.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/self_check.h"

namespace quire::cpu {

namespace portable {
extern const KernelTable kTable;
}
#if QUIRE_HAS_X86_VARIANTS
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

namespace {

// From the slowest to the fastest.
constexpr std::array<std::string_view, 3> kIsas = {"portable", "avx2", "avx512"};

// __builtin_cpu_supports asks for the operating system's consent to the wide registers as well.
#if QUIRE_HAS_X86_VARIANTS
bool machine_has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

bool machine_has_avx512() {
  return machine_has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0;
}
#endif

// The best variant up to kIsas[kIsa] that this machine runs and that passes the self-check; found once a process.
template <std::size_t kIsa>
const KernelTable& checked_best() {
  static const KernelTable& checked = []() -> const KernelTable& {
    const KernelTable* table = find_kernels(kIsas[kIsa]);
    if (table != nullptr && &checked_kernels(*table, portable::kTable) == table) return *table;
    return checked_best<kIsa - 1>();
  }();
  return checked;
}
template <>
const KernelTable& checked_best<0>() {
  return portable::kTable;
}

}  // namespace

const KernelTable* find_kernels(std::string_view isa) {
  if (isa == "portable") return &portable::kTable;
#if QUIRE_HAS_X86_VARIANTS
  if (isa == "avx2" && machine_has_avx2()) return &avx2::kTable;
  if (isa == "avx512" && machine_has_avx512()) return &avx512::kTable;
#endif
  return nullptr;
}

const KernelTable& best_kernels() {
  std::string_view isa = kIsas.back();
  if (const char* cap = std::getenv("QUIRE_CPU_ISA"); cap != nullptr && *cap != '\0') isa = cap;
  if (isa == "portable") return portable::kTable;
  if (isa == "avx2") return checked_best<1>();
  if (isa == "avx512") return checked_best<2>();
  fail(ErrorCode::kInvalidArgument, R"(QUIRE_CPU_ISA is "{}", must be "portable", "avx2" or "avx512")", isa);
}

std::size_t matmul_scratch_bytes(std::int64_t rows, std::int64_t inner, int activation_terms) {
  return static_cast<std::size_t>(rows * activation_terms * (inner / kBlock)) * sizeof(ActivationBlock);
}

}  // namespace quire::cpu
