// The CPU kernels, one function per op of kernels/ops.h, in one variant per instruction set. A variant is a table of functions;
// all variants give the same bits (docs/numerics.md), so a table may be swapped for another at any time.
#pragma once

#include <span>
#include <string_view>

#include "core/parallel.h"
#include "kernels/ops.h"

namespace quire::cpu {

// Rows of a head stand in fixed buffers: rope and attention take heads up to this size.
inline constexpr int kMaxHeadSize = 512;

struct KernelTable {
  std::string_view isa;
  void (*embed)(const EmbedArgs&, ThreadPool&);
  void (*rms_norm)(const RmsNormArgs&, ThreadPool&);
  void (*add_rms_norm)(const AddRmsNormArgs&, ThreadPool&);
  void (*add)(const AddArgs&, ThreadPool&);
  // `scratch`: at least matmul_scratch_bytes(R, K, activation_terms), 64-byte aligned: the quantised rows of x.
  void (*matmul)(const MatmulArgs&, ThreadPool&, void* scratch);
  void (*rope)(const RopeArgs&, ThreadPool&);
  void (*append_kv)(const AppendKvArgs&, ThreadPool&);
  // Prefill and decode are one function on the CPU. `scratch`: attention_scratch_bytes(max kv_len, threads).
  void (*attention)(const AttentionArgs&, ThreadPool&, void* scratch);
  void (*gated_activation)(const GatedActivationArgs&, ThreadPool&);
  void (*softcap)(const SoftcapArgs&, ThreadPool&);
  // `scratch`: sample_scratch_bytes(V, threads), 64-byte aligned; only rows that are drawn or adjusted touch it.
  void (*sample)(const SampleArgs&, ThreadPool&, void* scratch);
};

// The variant named; nullptr if this build or machine lacks it. "portable" always exists.
const KernelTable* find_kernels(std::string_view isa);

// The best variant that this machine runs, capped by the environment variable QUIRE_CPU_ISA ("portable", "avx2", "avx512", "amx";
// an unknown name throws Error(kInvalidArgument)), which is read on every call. The first call compares the choice with the
// portable variant, bit for bit, on a small case of every op; a difference logs a warning and the next best is taken.
const KernelTable& best_kernels();

std::size_t matmul_scratch_bytes(std::int64_t rows, std::int64_t inner, int activation_terms = 1);
std::size_t attention_scratch_bytes(std::int64_t max_kv_len, int num_threads);
std::size_t sample_scratch_bytes(std::int64_t vocabulary, int num_threads);

// Quantised weights as panels (panel.h), the form in which products are fast: `from` [M, K] in rows, `to` packed_bytes(M, K) of
// it.
struct PackArgs {
  TensorView from;
  void* to = nullptr;
};
std::int64_t packed_bytes(DType type, std::int64_t rows, std::int64_t inner);
void pack_panels(std::span<const PackArgs> matrices, ThreadPool& pool);
inline void pack_panels(const TensorView& from, void* to, ThreadPool& pool) {
  const PackArgs args{from, to};
  pack_panels({&args, 1}, pool);
}

// Independent of the instruction set (double precision or pure copies).
void rope_table(const RopeTableArgs& args, ThreadPool& pool);
void gather_rows(const GatherRowsArgs& args, ThreadPool& pool);
void copy_blocks(const CopyBlocksArgs& args);

}  // namespace quire::cpu
