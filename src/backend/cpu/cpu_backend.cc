#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/host_memory.h"
#include "backend/cpu/op_checks.h"
#include "core/check.h"

namespace quire {

CpuBackend::CpuBackend(const BackendOptions& options) : CpuBackend(cpu::best_kernels(), options) {}

CpuBackend::CpuBackend(const cpu::KernelTable& kernels, const BackendOptions& options)
    : kernels_(kernels), pool_(options.num_threads) {}

std::size_t CpuBackend::free_bytes() const { return available_host_bytes(); }

DeviceBuffer CpuBackend::allocate(std::size_t bytes) { return allocate_host_memory(bytes); }

void CpuBackend::upload(void* to_device, const void* from_host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_device, from_host, bytes);
}

void CpuBackend::download(void* to_host, const void* from_device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from_device, bytes);
}

// Products with quantised weights are fast in panels; what is only looked up, and floats, stay in the file.
MatrixForm CpuBackend::matrix_form(const TensorView& matrix, MatrixUse use) const {
  if (!is_quantized(matrix.dtype) || use == MatrixUse::kLookup) {
    return {matrix.dtype, Layout::kRows, matrix.num_bytes(), true};
  }
  return {matrix.dtype, Layout::kPanels, cpu::packed_bytes(matrix.dtype, matrix.dim(0), matrix.dim(1)), false};
}

void CpuBackend::upload_matrix(const TensorView& to, const TensorView& from) {
  const MatrixUpload upload{to, from};
  upload_matrices({&upload, 1});
}

void CpuBackend::upload_matrices(std::span<const MatrixUpload> uploads) {
  bring_in(uploads);
  std::vector<cpu::PackArgs> panels;
  for (const auto& [to, from] : uploads) {
    if (to.layout == Layout::kPanels) {
      panels.push_back({from, to.data});
    } else {
      upload(to.data, from.data, static_cast<std::size_t>(from.num_bytes()));
    }
  }
  cpu::pack_panels(panels, pool_);
}

// All pages of both sides before the threads meet in them: two that touch the same new page at once both clear one.
void CpuBackend::bring_in(std::span<const MatrixUpload> uploads) {
  PageList pages;
  for (const auto& [to, from] : uploads) {
    const auto to_bytes = to.layout == Layout::kPanels ? cpu::packed_bytes(to.dtype, to.dim(0), to.dim(1)) : to.num_bytes();
    pages.add(to.data, static_cast<std::size_t>(to_bytes), PageList::Access::kWrite);
    pages.add(from.data, static_cast<std::size_t>(from.num_bytes()), PageList::Access::kRead);
  }
  pool_.parallel_for(pages.size(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t piece = begin; piece < end; ++piece) pages.bring_in(piece);
  });
}

void CpuBackend::check_attention(const KvLayer& kv, int) const {
  if (kv.head_size <= cpu::kMaxHeadSize) return;
  fail(ErrorCode::kUnsupported, "the model's head_size is {}; attention on the CPU takes up to {}", kv.head_size,
       cpu::kMaxHeadSize);
}

void* CpuBackend::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = DeviceBuffer();  // the old one goes before the new one comes
    scratch_ = allocate_host_memory(bytes);
  }
  return scratch_.data();
}

void CpuBackend::embed(const EmbedArgs& args) {
  check_args(args);
  kernels_.embed(args, pool_);
}

void CpuBackend::rms_norm(const RmsNormArgs& args) {
  check_args(args);
  kernels_.rms_norm(args, pool_);
}

void CpuBackend::add_rms_norm(const AddRmsNormArgs& args) {
  check_args(args);
  kernels_.add_rms_norm(args, pool_);
}

void CpuBackend::add(const AddArgs& args) {
  check_args(args);
  kernels_.add(args, pool_);
}

void CpuBackend::matmul(const MatmulArgs& args) {
  check_args(args);
  kernels_.matmul(args, pool_, scratch(cpu::matmul_scratch_bytes(args.x.dim(0), args.x.dim(1), args.activation_terms)));
}

void CpuBackend::rope_table(const RopeTableArgs& args) {
  check_args(args);
  cpu::rope_table(args, pool_);
}

void CpuBackend::rope(const RopeArgs& args) {
  check_args(args);
  kernels_.rope(args, pool_);
}

void CpuBackend::append_kv(const AppendKvArgs& args) {
  check_args(args);
  kernels_.append_kv(args, pool_);
}

void CpuBackend::prefill_attention(const AttentionArgs& args) {
  check_args(args);
  const auto* kv_lens = args.kv_lens.as<std::int32_t>();
  const std::int64_t num_sequences = args.kv_lens.dim(0);
  const std::int64_t longest = num_sequences == 0 ? 0 : *std::max_element(kv_lens, kv_lens + num_sequences);
  kernels_.attention(args, pool_, scratch(cpu::attention_scratch_bytes(longest, pool_.num_threads())));
}

void CpuBackend::decode_attention(const AttentionArgs& args) { prefill_attention(args); }

void CpuBackend::gated_activation(const GatedActivationArgs& args) {
  check_args(args);
  kernels_.gated_activation(args, pool_);
}

void CpuBackend::gather_rows(const GatherRowsArgs& args) {
  check_args(args);
  cpu::gather_rows(args, pool_);
}

void CpuBackend::softcap(const SoftcapArgs& args) {
  check_args(args);
  kernels_.softcap(args, pool_);
}

void CpuBackend::sample(const SampleArgs& args) {
  check_args(args);
  kernels_.sample(args, pool_, scratch(cpu::sample_scratch_bytes(args.logits.dim(1), pool_.num_threads())));
}

void CpuBackend::copy_blocks(const CopyBlocksArgs& args) {
  check_args(args);
  cpu::copy_blocks(args);
}

}  // namespace quire
