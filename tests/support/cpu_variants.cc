#include "tests/support/cpu_variants.h"

#if QUIRE_HAS_AVX512_SIMDE
namespace quire::cpu::avx512_simde {
extern const KernelTable kTable;
extern const KernelTable kAmxTable;
}  // namespace quire::cpu::avx512_simde
#endif

namespace quire::testing {

const cpu::KernelTable* find_variant(std::string_view name) {
#if QUIRE_HAS_AVX512_SIMDE
  if (name == "avx512_simde" && cpu::find_kernels("avx2") != nullptr) return &cpu::avx512_simde::kTable;
  if (name == "amx_model" && cpu::find_kernels("avx2") != nullptr) return &cpu::avx512_simde::kAmxTable;
#endif
  return cpu::find_kernels(name);
}

}  // namespace quire::testing
