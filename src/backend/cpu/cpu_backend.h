// CpuBackend: the ops of one table of CPU kernels, on a pool of threads that it owns, with the scratch memory they need.
// Every op checks its arguments (op_checks.h) and runs before the call returns. Not thread-safe.
#pragma once

#include "backend/backend.h"
#include "core/parallel.h"
#include "kernels/cpu/kernels.h"

namespace quire {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options = {});
  // With a given table: tests run every variant.
  CpuBackend(const cpu::KernelTable& kernels, const BackendOptions& options);

  Device device() const override { return {DeviceKind::kCpu, 0}; }
  std::string isa() const override { return std::string(kernels_.isa); }
  std::size_t free_bytes() const override;
  DType activation_dtype() const override { return DType::kF32; }

  DeviceBuffer allocate(std::size_t bytes) override;
  bool reads_host_memory() const override { return true; }
  MatrixForm matrix_form(const TensorView& matrix, MatrixUse use) const override;
  void upload_matrix(const TensorView& to, const TensorView& from) override;
  void upload_matrices(std::span<const MatrixUpload> uploads) override;
  void upload(void* to_device, const void* from_host, std::size_t bytes) override;
  void download(void* to_host, const void* from_device, std::size_t bytes) override;
  void synchronize() override {}

  void check_attention(const KvLayer& kv, int num_heads) const override;
  void plan_attention(const AttentionShape&, AttentionLists&) const override {}

  void embed(const EmbedArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void add_rms_norm(const AddRmsNormArgs& args) override;
  void add(const AddArgs& args) override;
  void matmul(const MatmulArgs& args) override;
  void rope_table(const RopeTableArgs& args) override;
  void rope(const RopeArgs& args) override;
  void append_kv(const AppendKvArgs& args) override;
  void prefill_attention(const AttentionArgs& args) override;
  void decode_attention(const AttentionArgs& args) override;
  void gated_activation(const GatedActivationArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override;
  void softcap(const SoftcapArgs& args) override;
  void sample(const SampleArgs& args) override;
  void copy_blocks(const CopyBlocksArgs& args) override;

 private:
  void* scratch(std::size_t bytes);
  void bring_in(std::span<const MatrixUpload> uploads);

  const cpu::KernelTable& kernels_;
  ThreadPool pool_;
  DeviceBuffer scratch_;  // of the op that runs; grows
};

}  // namespace quire
