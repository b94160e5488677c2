// The choice of a variant.
#include "kernels/cpu/kernels.h"

#include <cstdlib>

#if QUIRE_HAS_AVX2
#include <cpuid.h>
#endif

#include "core/check.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/self_check.h"

namespace quire::cpu {

namespace portable {
extern const KernelTable kTable;
}
#if QUIRE_HAS_AVX2
namespace avx2 {
extern const KernelTable kTable;
}
#endif

namespace {

#if QUIRE_HAS_AVX2
bool machine_has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  // These two ask the operating system for its consent to the wide registers as well.
  return f16c && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}
#endif

// What the self-check makes of the machine's AVX2 kernels; once a process, for its answer does not change.
const KernelTable& checked_best() {
  static const KernelTable& checked = []() -> const KernelTable& {
    const KernelTable* best = find_kernels("avx2");
    return best == nullptr ? portable::kTable : checked_kernels(*best, portable::kTable);
  }();
  return checked;
}

}  // namespace

const KernelTable* find_kernels(std::string_view isa) {
  if (isa == "portable") return &portable::kTable;
#if QUIRE_HAS_AVX2
  if (isa == "avx2" && machine_has_avx2()) return &avx2::kTable;
#endif
  return nullptr;
}

const KernelTable& best_kernels() {
  std::string_view isa = "avx2";
  if (const char* cap = std::getenv("QUIRE_CPU_ISA"); cap != nullptr && *cap != '\0') isa = cap;
  if (isa != "portable" && isa != "avx2") {
    fail(ErrorCode::kInvalidArgument, "QUIRE_CPU_ISA is \"{}\", must be \"portable\" or \"avx2\"", isa);
  }
  return isa == "portable" ? portable::kTable : checked_best();
}

std::size_t matmul_scratch_bytes(std::int64_t rows, std::int64_t inner, int activation_terms) {
  return static_cast<std::size_t>(rows * activation_terms * (inner / kBlock)) * sizeof(ActivationBlock);
}

}  // namespace quire::cpu
