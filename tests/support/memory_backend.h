// MemoryBackend: a Backend with memory and no ops, for tests of loading. With `in_place` it reads host memory as the CPU backend
// does; without, it plays a device: everything is uploaded, and it counts what.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "backend/backend.h"
#include "core/check.h"

namespace quire::test {

class MemoryBackend final : public Backend {
 public:
  explicit MemoryBackend(bool in_place) : in_place_(in_place) {}

  std::size_t uploaded_bytes() const { return uploaded_bytes_; }
  std::size_t allocated_bytes() const { return allocated_bytes_; }
  // Called after each upload, while what was uploaded is in memory on both sides.
  void after_upload(std::function<void()> look) { after_upload_ = std::move(look); }

  Device device() const override { return {}; }
  std::string isa() const override { return "none"; }
  std::size_t free_bytes() const override { return std::size_t{1} << 30; }
  DType activation_dtype() const override { return DType::kF32; }
  DeviceBuffer allocate(std::size_t bytes) override {
    allocated_bytes_ += bytes;
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (data == nullptr) fail(ErrorCode::kOutOfMemory, "{} bytes", bytes);
    return DeviceBuffer(data, bytes, [](void* p, std::size_t) { std::free(p); });
  }
  bool reads_host_memory() const override { return in_place_; }
  MatrixForm matrix_form(const TensorView& matrix, MatrixUse) const override {
    return {matrix.dtype, Layout::kRows, matrix.num_bytes(), in_place_};
  }
  void upload_matrix(const TensorView& to, const TensorView& from) override {
    upload(to.data, from.data, static_cast<std::size_t>(from.num_bytes()));
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    uploaded_bytes_ += bytes;
    std::memcpy(to, from, bytes);
    after_upload_();
  }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  void check_attention(const KvLayer&, int) const override {}
  void plan_attention(const AttentionShape&, AttentionLists&) const override {}

  void embed(const EmbedArgs&) override { fail_op(); }
  void rms_norm(const RmsNormArgs&) override { fail_op(); }
  void add_rms_norm(const AddRmsNormArgs&) override { fail_op(); }
  void add(const AddArgs&) override { fail_op(); }
  void matmul(const MatmulArgs&) override { fail_op(); }
  void rope_table(const RopeTableArgs&) override { fail_op(); }
  void rope(const RopeArgs&) override { fail_op(); }
  void append_kv(const AppendKvArgs&) override { fail_op(); }
  void prefill_attention(const AttentionArgs&) override { fail_op(); }
  void decode_attention(const AttentionArgs&) override { fail_op(); }
  void gated_activation(const GatedActivationArgs&) override { fail_op(); }
  void gather_rows(const GatherRowsArgs&) override { fail_op(); }
  void softcap(const SoftcapArgs&) override { fail_op(); }
  void sample(const SampleArgs&) override { fail_op(); }
  void copy_blocks(const CopyBlocksArgs&) override { fail_op(); }

 private:
  [[noreturn]] static void fail_op() { fail(ErrorCode::kUnsupported, "a backend of memory only has no ops"); }

  bool in_place_;
  std::size_t uploaded_bytes_ = 0;
  std::size_t allocated_bytes_ = 0;
  std::function<void()> after_upload_ = [] {};
};

}  // namespace quire::test
