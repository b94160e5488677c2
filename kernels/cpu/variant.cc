// The table of one variant.
#include "kernels/cpu/variant.h"

#define QUIRE_ISA_STRING_(name) #name
#define QUIRE_ISA_STRING(name) QUIRE_ISA_STRING_(name)

namespace quire::cpu::QUIRE_ISA {

constinit const KernelTable kTable{
    .isa = QUIRE_ISA_STRING(QUIRE_ISA),
    .embed = embed,
    .rms_norm = rms_norm,
    .add_rms_norm = add_rms_norm,
    .add = add,
    .matmul = matmul,
    .rope = rope,
    .append_kv = append_kv,
    .attention = attention,
    .gated_activation = gated_activation,
    .softcap = softcap,
    .sample = sample,
};

}  // namespace quire::cpu::QUIRE_ISA
