// The choice of a variant.
#include "kernels/cpu/kernels.h"

#include <array>
#include <cstdlib>

#if QUIRE_HAS_X86_VARIANTS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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
extern const KernelTable kAmxTable;
}  // namespace avx512
#endif

namespace {

// From the slowest to the fastest.
constexpr std::array<std::string_view, 4> kIsas = {"portable", "avx2", "avx512", "amx"};

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

// The tiles' 8 KB are given to a process that asks for them (Linux 5.16 and later), once for all its threads.
bool machine_has_amx() {
  static const bool has_amx = [] {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // of leaf 7, register d
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has_amx && machine_has_avx512();
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
  if (isa == "amx" && machine_has_amx()) return &avx512::kAmxTable;
#endif
  return nullptr;
}

const KernelTable& best_kernels() {
  std::string_view isa = kIsas.back();
  if (const char* cap = std::getenv("QUIRE_CPU_ISA"); cap != nullptr && *cap != '\0') isa = cap;
  if (isa == "portable") return portable::kTable;
  if (isa == "avx2") return checked_best<1>();
  if (isa == "avx512") return checked_best<2>();
  if (isa == "amx") return checked_best<3>();
  fail(ErrorCode::kInvalidArgument, R"(QUIRE_CPU_ISA is "{}", must be "portable", "avx2", "avx512" or "amx")", isa);
}

std::size_t matmul_scratch_bytes(std::int64_t rows, std::int64_t inner, int activation_terms) {
  return static_cast<std::size_t>(rows * activation_terms * (inner / kBlock)) * sizeof(ActivationBlock);
}

}  // namespace quire::cpu
