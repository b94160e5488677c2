// The table of one variant.
#include "kernels/cpu/variant.h"

#define QUIRE_ISA_STRING_(name) #name
#define QUIRE_ISA_STRING(name) QUIRE_ISA_STRING_(name)

namespace quire::cpu::QUIRE_ISA {

namespace {

consteval KernelTable table(std::string_view isa, decltype(KernelTable::matmul) matmul_of_isa) {
  return {
      .isa = isa,
      .embed = embed,
      .rms_norm = rms_norm,
      .add_rms_norm = add_rms_norm,
      .add = add,
      .matmul = matmul_of_isa,
      .rope = rope,
      .append_kv = append_kv,
      .attention = attention,
      .gated_activation = gated_activation,
      .softcap = softcap,
      .sample = sample,
  };
}

}  // namespace

constinit const KernelTable kTable = table(QUIRE_ISA_STRING(QUIRE_ISA), matmul);
#if QUIRE_ISA_AVX512
#ifdef QUIRE_AMX_MODEL
constinit const KernelTable kAmxTable = table("amx_model", matmul_amx);
#else
constinit const KernelTable kAmxTable = table("amx", matmul_amx);
#endif
#endif

}  // namespace quire::cpu::QUIRE_ISA
