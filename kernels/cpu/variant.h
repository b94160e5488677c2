// The functions of one variant of the CPU kernels, in its namespace quire::cpu::<isa>. kernels/cpu/*.cc define them, one file
// per kind of op; variant.cc collects them into the variant's KernelTable. For kernel sources only.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"

namespace quire::cpu::QUIRE_ISA {

void embed(const EmbedArgs& args, ThreadPool& pool);
void rms_norm(const RmsNormArgs& args, ThreadPool& pool);
void add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool);
void add(const AddArgs& args, ThreadPool& pool);
void matmul(const MatmulArgs& args, ThreadPool& pool, void* scratch);
void rope(const RopeArgs& args, ThreadPool& pool);
void append_kv(const AppendKvArgs& args, ThreadPool& pool);
void attention(const AttentionArgs& args, ThreadPool& pool, void* scratch);
void gated_activation(const GatedActivationArgs& args, ThreadPool& pool);
void softcap(const SoftcapArgs& args, ThreadPool& pool);
void sample(const SampleArgs& args, ThreadPool& pool, void* scratch);

extern const KernelTable kTable;

#if QUIRE_ISA_AVX512
// AVX-512 with the tiles of AMX for products of many rows: the same functions but one.
void matmul_amx(const MatmulArgs& args, ThreadPool& pool, void* scratch);
extern const KernelTable kAmxTable;
#endif

}  // namespace quire::cpu::QUIRE_ISA
