// CudaBackend: the ops of kernels/cuda on one device and one stream. Ops return before they have run; sample(), download() and
// synchronize() wait. Host memory goes through pinned buffers of its own, so that an upload neither waits nor ties the caller's
// memory. Owns stream, buffers and cuBLASLt. After a device error every further call fails. One thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention_work.h"
#include "backend/cuda/step_graph.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/split_plan.h"

namespace quire {

// Devices that the driver offers; 0 without a driver that works.
int num_cuda_devices();
// Throws Error(kUnsupported) for a device that is not there, is older than sm_80, or an activation type it lacks.
std::unique_ptr<Backend> create_cuda_backend(Device device, const BackendOptions& options);

class CudaBackend final : public Backend {
 public:
  // `unpacked_bytes`: of a packed weight, made floats at a time for products of many rows.
  CudaBackend(int device, const BackendOptions& options, std::size_t unpacked_bytes = std::size_t{64} << 20);
  ~CudaBackend() override;

  Device device() const override { return {DeviceKind::kCuda, device_}; }
  std::string isa() const override { return isa_; }
  std::size_t free_bytes() const override;
  DType activation_dtype() const override { return activation_dtype_; }

  DeviceBuffer allocate(std::size_t bytes) override;
  bool reads_host_memory() const override { return false; }
  MatrixForm matrix_form(const TensorView& matrix, MatrixUse use) const override;
  void upload_matrix(const TensorView& to, const TensorView& from) override;
  void upload(void* to_device, const void* from_host, std::size_t bytes) override;
  void download(void* to_host, const void* from_device, std::size_t bytes) override;
  void synchronize() override;
  bool is_asynchronous() const override { return true; }

  void prepare(const StepLimits& limits) override;
  void prepare_matmul(const MatmulArgs& largest) override;

  void check_attention(const KvLayer& kv, int num_heads) const override;
  void plan_attention(const AttentionShape& shape, AttentionLists& lists) const override;
  std::int64_t most_list_bytes(const AttentionShape& shape, const StepLimits& limits) const override;

  bool replays() const override { return true; }
  void run(const ReplayKey& key, const std::function<void()>& ops) override;

  void embed(const EmbedArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void add_rms_norm(const AddRmsNormArgs& args) override;
  void add(const AddArgs& args) override;
  void matmul(const MatmulArgs& args) override;
  void rope_table(const RopeTableArgs& args) override;
  void rope(const RopeArgs& args) override;
  void append_kv(const AppendKvArgs& args) override;
  void rope_append_kv(const RopeAppendKvArgs& args) override;
  void prefill_attention(const AttentionArgs& args) override;
  void decode_attention(const AttentionArgs& args) override;
  void gated_activation(const GatedActivationArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override;
  void softcap(const SoftcapArgs& args) override;
  void sample(const SampleArgs& args) override;
  void copy_blocks(const CopyBlocksArgs& args) override;

 private:
  // Pinned host memory, used from the front; free again after a wait.
  struct Staging {
    DeviceBuffer memory;
    std::size_t used = 0;
  };

  // Makes this backend's device the calling thread's.
  void use_device() const;
  DeviceBuffer allocate_pinned(std::size_t bytes);
  void* stage(const void* from_host, std::size_t bytes);
  cuda::SplitShape split_shape(const AttentionShape& shape) const;
  PartialMemory partial_memory() const;
  template <typename Visit>
  void visit_unpacked(const Projection& projection, const Visit& visit) const;
  void reserve_sampling(std::int64_t rows, std::int64_t vocabulary);
  void sample_packed(const SampleArgs& args);

  int device_;
  DType activation_dtype_;
  bool deterministic_;
  std::size_t unpacked_bytes_;
  std::string isa_;
  int num_sms_ = 0;
  cuda::Stream stream_ = nullptr;
  Staging staging_;
  DeviceBuffer workspace_;              // of matrix products, then of attention's partial results
  std::vector<std::byte> packed_rows_;  // of sample()
  // Of sample(): the packed rows, then results, then scratch, for so many rows of so many tokens.
  struct Sampling {
    DeviceBuffer memory = {};
    std::int64_t rows = 0, vocabulary = 0;
    std::size_t packed_bytes = 0, results_bytes = 0;  // rounded up
  };
  Sampling sampling_;
  DeviceBuffer raw_;       // of upload_matrix: rows as the file has them; given back by prepare()
  DeviceBuffer unpacked_;  // rows of a packed weight in the type of activations, for products of many rows
  std::optional<cuda::Matmul> matmul_;
  StepGraphs graphs_;
};

}  // namespace quire
