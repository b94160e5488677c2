#include "backend/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

constexpr std::size_t kPage = 4096;                      // bytes; memory comes from the kernel, zeroed and page-aligned
constexpr std::size_t kHugePage = std::size_t{2} << 20;  // worth asking for from this size on

std::optional<std::size_t> read_number(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::size_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes << 10;
    std::getline(file, unit);
  }
  return std::numeric_limits<std::size_t>::max();
}

// What the control group leaves, where there is one with a limit (version 2, then 1).
std::size_t cgroup_memory() {
  struct Files {
    const char *limit, *used;
  };
  for (const Files& files :
       {Files{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        Files{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const auto limit = read_number(files.limit), used = read_number(files.used);
    if (limit && used) return *limit > *used ? *limit - *used : 0;
  }
  return std::numeric_limits<std::size_t>::max();
}

void check_matrix(const char* op, const char* name, const TensorView& view, std::int64_t rows, std::int64_t columns) {
  QUIRE_CHECK_MSG(view.rank == 2 && view.dim(0) == rows && view.dim(1) == columns, "{}: {} is {}, not [{}, {}]", op, name,
                  view.describe(), rows, columns);
}

void check_f32(const char* op, const char* name, const TensorView& view) {
  QUIRE_CHECK_MSG(view.dtype == DType::kF32, "{}: {} is {}, not F32", op, name, view.describe());
}

}  // namespace

CpuBackend::CpuBackend(const cpu::KernelTable& kernels, const BackendOptions& options)
    : kernels_(kernels), pool_(options.num_threads) {}

std::size_t CpuBackend::free_bytes() const { return std::min(available_memory(), cgroup_memory()); }

DeviceBuffer CpuBackend::allocate(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) fail(ErrorCode::kOutOfMemory, "cannot allocate {} bytes", bytes);
  const std::size_t mapped = round_up(std::max<std::size_t>(bytes, 1), kPage);
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) fail(ErrorCode::kOutOfMemory, "cannot allocate {} bytes", bytes);
  if (mapped >= kHugePage) madvise(data, mapped, MADV_HUGEPAGE);  // advice: its failure changes nothing
  return DeviceBuffer(data, mapped, [](void* p, std::size_t size) { munmap(p, size); });
}

void CpuBackend::upload(void* to_device, const void* from_host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_device, from_host, bytes);
}

void CpuBackend::download(void* to_host, const void* from_device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from_device, bytes);
}

void* CpuBackend::scratch(std::size_t bytes) {
  if (scratch_.bytes() < bytes) scratch_ = allocate(bytes + bytes / 2);
  return scratch_.data();
}

void CpuBackend::embed(const EmbedArgs& args) {
  check_f32("embed", "out", args.out);
  check_matrix("embed", "out", args.out, args.token_ids.dim(0), args.table.dim(1));
  kernels_.embed(args, pool_);
}

void CpuBackend::rms_norm(const RmsNormArgs& args) {
  check_f32("rms_norm", "x", args.x);
  check_f32("rms_norm", "weight", args.weight);
  QUIRE_CHECK(args.weight.dim(0) == args.x.dim(1));
  check_matrix("rms_norm", "out", args.out, args.x.dim(0), args.x.dim(1));
  kernels_.rms_norm(args, pool_);
}

void CpuBackend::add_rms_norm(const AddRmsNormArgs& args) {
  check_f32("add_rms_norm", "x", args.x);
  check_f32("add_rms_norm", "weight", args.weight);
  QUIRE_CHECK(args.weight.dim(0) == args.x.dim(1));
  check_matrix("add_rms_norm", "residual", args.residual, args.x.dim(0), args.x.dim(1));
  check_matrix("add_rms_norm", "out", args.out, args.x.dim(0), args.x.dim(1));
  kernels_.add_rms_norm(args, pool_);
}

void CpuBackend::add(const AddArgs& args) {
  check_matrix("add", "x", args.x, args.residual.dim(0), args.residual.dim(1));
  kernels_.add(args, pool_);
}

void CpuBackend::matmul(const MatmulArgs& args) {
  check_f32("matmul", "x", args.x);
  const std::int64_t rows = args.x.dim(0), inner = args.x.dim(1);
  QUIRE_CHECK(args.num_projections >= 1 && args.num_projections <= MatmulArgs::kMaxProjections);
  for (int i = 0; i < args.num_projections; ++i) {
    const Projection& p = args.projections[i];
    check_f32("matmul", "out", p.out);
    check_matrix("matmul", "weight", p.weight, p.weight.dim(0), inner);
    check_matrix("matmul", "out", p.out, rows, p.weight.dim(0));
    QUIRE_CHECK(p.bias.data == nullptr || (p.bias.dtype == DType::kF32 && p.bias.dim(0) == p.weight.dim(0)));
  }
  kernels_.matmul(args, pool_, scratch(cpu::matmul_scratch_bytes(rows, inner)));
}

void CpuBackend::rope_table(const RopeTableArgs& args) {
  QUIRE_CHECK(args.cos_sin.dim(0) == args.positions.dim(0) && args.cos_sin.dim(1) == args.inv_freq.dim(0));
  cpu::rope_table(args, pool_);
}

void CpuBackend::rope(const RopeArgs& args) {
  check_f32("rope", "x", args.x);
  QUIRE_CHECK(args.cos_sin.dim(0) == args.x.dim(0) && 2 * args.cos_sin.dim(1) <= args.x.dim(2));
  kernels_.rope(args, pool_);
}

void CpuBackend::append_kv(const AppendKvArgs& args) {
  check_f32("append_kv", "k", args.k);
  check_f32("append_kv", "v", args.v);
  QUIRE_CHECK(args.k.dim(1) == args.kv.num_heads && args.k.dim(2) == args.kv.head_size && args.slots.dim(0) == args.k.dim(0));
  kernels_.append_kv(args, pool_);
}

void CpuBackend::attention(const AttentionArgs& args) {
  check_f32("attention", "q", args.q);
  QUIRE_CHECK_MSG(args.kv.num_heads > 0 && args.q.dim(1) % args.kv.num_heads == 0, "attention: {} query heads, {} KV heads",
                  args.q.dim(1), args.kv.num_heads);
  QUIRE_CHECK(args.q.dim(2) == args.kv.head_size);
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < args.kv_lens.dim(0); ++s) {
    longest = std::max<std::int64_t>(longest, args.kv_lens.as<const std::int32_t>()[s]);
  }
  kernels_.attention(args, pool_, scratch(cpu::attention_scratch_bytes(longest, pool_.num_threads())));
}

void CpuBackend::gated_activation(const GatedActivationArgs& args) {
  check_f32("gated_activation", "gate", args.gate);
  check_matrix("gated_activation", "up", args.up, args.gate.dim(0), args.gate.dim(1));
  check_matrix("gated_activation", "out", args.out, args.gate.dim(0), args.gate.dim(1));
  kernels_.gated_activation(args, pool_);
}

void CpuBackend::gather_rows(const GatherRowsArgs& args) {
  check_matrix("gather_rows", "out", args.out, args.rows.dim(0), args.x.dim(1));
  cpu::gather_rows(args, pool_);
}

void CpuBackend::softcap(const SoftcapArgs& args) {
  check_f32("softcap", "logits", args.logits);
  kernels_.softcap(args, pool_);
}

void CpuBackend::sample(const SampleArgs& args) {
  check_f32("sample", "logits", args.logits);
  kernels_.sample(args, pool_);
}

void CpuBackend::copy_blocks(const CopyBlocksArgs& args) { cpu::copy_blocks(args); }

}  // namespace quire
