// CpuBackend: the ops of kernels/ops.h on the CPU kernels of one instruction set, over its own thread pool. Memory is host
// memory, every op has run when it returns. Owns the scratch that kernels need, grown to the largest call seen.
#pragma once

#include "backend/backend.h"
#include "core/parallel.h"
#include "kernels/cpu/kernels.h"

namespace quire {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const cpu::KernelTable& kernels, const BackendOptions& options);

  Device device() const override { return {}; }
  std::string isa() const override { return std::string(kernels_.isa); }
  std::size_t free_bytes() const override;
  DType activation_dtype() const override { return DType::kF32; }

  DeviceBuffer allocate(std::size_t bytes) override;
  bool reads_host_memory() const override { return true; }
  void upload(void* to_device, const void* from_host, std::size_t bytes) override;
  void download(void* to_host, const void* from_device, std::size_t bytes) override;
  void synchronize() override {}

  void embed(const EmbedArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void add_rms_norm(const AddRmsNormArgs& args) override;
  void add(const AddArgs& args) override;
  void matmul(const MatmulArgs& args) override;
  void rope_table(const RopeTableArgs& args) override;
  void rope(const RopeArgs& args) override;
  void append_kv(const AppendKvArgs& args) override;
  void prefill_attention(const AttentionArgs& args) override { attention(args); }
  void decode_attention(const AttentionArgs& args) override { attention(args); }
  void gated_activation(const GatedActivationArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override;
  void softcap(const SoftcapArgs& args) override;
  void sample(const SampleArgs& args) override;
  void copy_blocks(const CopyBlocksArgs& args) override;

 private:
  void attention(const AttentionArgs& args);
  void* scratch(std::size_t bytes);

  const cpu::KernelTable& kernels_;
  ThreadPool pool_;
  DeviceBuffer scratch_;
};

}  // namespace quire
