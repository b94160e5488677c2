#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "core/float16.h"
#include "core/math.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sample_rows.h"

namespace quire {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{16} << 20;    // larger than any step's arrays; weights pass in pieces
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;  // attention's partial results; larger steps go in waves
constexpr std::int64_t kPackedRows = 16;                        // rows of a weight are packed together
constexpr std::int64_t kMostPackedRows = 8;  // of x: packed weights are read once for so many; beyond, cuBLASLt is given floats
constexpr std::size_t kAlignment = 256;      // of what is staged
constexpr std::int64_t kMostPackedBytes = std::int64_t{8} << 20;  // of rows to sample at a time, unless one row alone needs more

static_assert(kWorkspaceBytes >= cuda::Matmul::kWorkspaceBytes);

int attribute(int device, cudaDeviceAttr which) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// A matrix of floats as two-byte floats of `type`.
std::vector<std::uint16_t> narrowed(const TensorView& from, DType type) {
  const auto count = static_cast<std::size_t>(from.num_elements());
  std::vector<std::uint16_t> bits(count);
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0.0f;
    if (from.dtype == DType::kF32) {
      std::memcpy(&value, from.as<std::byte>() + i * sizeof(value), sizeof(value));  // files do not align it
    } else {
      std::uint16_t read = 0;
      std::memcpy(&read, from.as<std::byte>() + i * sizeof(read), sizeof(read));
      value = widen(read, from.dtype);
    }
    bits[i] = narrow(value, type);
  }
  return bits;
}

}  // namespace

int num_cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> create_cuda_backend(Device device, const BackendOptions& options) {
  const int count = num_cuda_devices();
  if (device.index < 0 || device.index >= count) {
    fail(ErrorCode::kUnsupported, "device cuda:{}: this machine has {} CUDA devices", device.index, count);
  }
  return std::make_unique<CudaBackend>(device.index, options);
}

// ---- device and memory

CudaBackend::CudaBackend(int device, const BackendOptions& options, std::size_t unpacked_bytes)
    : device_(device),
      activation_dtype_(options.activation_dtype),
      deterministic_(options.deterministic),
      unpacked_bytes_(unpacked_bytes) {
  if (activation_dtype_ != DType::kBF16 && activation_dtype_ != DType::kF16) {
    fail(ErrorCode::kUnsupported, "device cuda:{}: activations and KV are {}, must be BF16 or F16", device,
         to_string(activation_dtype_));
  }
  use_device();
  const int major = attribute(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
  if (major < 8) fail(ErrorCode::kUnsupported, "device cuda:{} is sm_{}{}, must be sm_80 or newer", device, major, minor);
  isa_ = fmt::format("sm_{}{}", major, minor);
  const int shared_bytes = attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (shared_bytes < cuda::kMostSharedBytes) {
    fail(ErrorCode::kUnsupported, "device cuda:{} ({}) gives a block {} bytes of shared memory, must be {} or more", device, isa_,
         shared_bytes, cuda::kMostSharedBytes);
  }
  if (const char* const reason = cuda::missing_code()) {
    fail(ErrorCode::kUnsupported, "device cuda:{} is {}, for which this build has no kernels ({}): set CMAKE_CUDA_ARCHITECTURES",
         device, isa_, reason);
  }
  num_sms_ = attribute(device, cudaDevAttrMultiProcessorCount);
  workspace_ = allocate(kWorkspaceBytes);
  staging_.memory = allocate_pinned(kStagingBytes);
  matmul_.emplace(workspace_.data(), deterministic_);
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaBackend::~CudaBackend() {
  if (cudaSetDevice(device_) == cudaSuccess) (void)cudaStreamDestroy(stream_);
}

void CudaBackend::use_device() const { cuda_check(cudaSetDevice(device_), "cudaSetDevice"); }

std::size_t CudaBackend::free_bytes() const {
  use_device();
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

DeviceBuffer CudaBackend::allocate(std::size_t bytes) {
  use_device();
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail(ErrorCode::kOutOfMemory, "device cuda:{} cannot give {} bytes; {} are free", device_, bytes, free_bytes());
  }
  cuda_check(status, "cudaMalloc");
  return DeviceBuffer(data, bytes, [](void* p, std::size_t) { (void)cudaFree(p); });
}

DeviceBuffer CudaBackend::allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  cuda_check(cudaMallocHost(&data, bytes), "cudaMallocHost");
  return DeviceBuffer(data, bytes, [](void* p, std::size_t) { (void)cudaFreeHost(p); });
}

// Room for `bytes` in pinned memory, filled from `from_host`. REQUIRES: bytes <= kStagingBytes.
void* CudaBackend::stage(const void* from_host, std::size_t bytes) {
  if (staging_.used + bytes > kStagingBytes) synchronize();
  auto* place = static_cast<std::byte*>(staging_.memory.data()) + staging_.used;
  if (from_host != nullptr) std::memcpy(place, from_host, bytes);
  staging_.used = std::min(round_up(staging_.used + bytes, kAlignment), kStagingBytes);
  return place;
}

void CudaBackend::upload(void* to_device, const void* from_host, std::size_t bytes) {
  use_device();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kStagingBytes);
    const void* staged = stage(static_cast<const std::byte*>(from_host) + done, piece);
    cuda_check(cudaMemcpyAsync(static_cast<std::byte*>(to_device) + done, staged, piece, cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync to device");
    done += piece;
  }
}

void CudaBackend::download(void* to_host, const void* from_device, std::size_t bytes) {
  use_device();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kStagingBytes);
    void* staged = stage(nullptr, piece);
    cuda_check(cudaMemcpyAsync(staged, static_cast<const std::byte*>(from_device) + done, piece, cudaMemcpyDeviceToHost, stream_),
               "cudaMemcpyAsync to host");
    synchronize();
    std::memcpy(static_cast<std::byte*>(to_host) + done, staged, piece);
    done += piece;
  }
}

void CudaBackend::synchronize() {
  cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  staging_.used = 0;
}

// ---- weights: packed as the file has them where a kernel takes that, else in the type of activations

// Deterministic: never packed, for the product of few rows sums in another order than that of many.
MatrixForm CudaBackend::matrix_form(const TensorView& matrix, MatrixUse use) const {
  const bool packed = !deterministic_ && use == MatrixUse::kProduct && cuda::is_packable(matrix);
  const DType dtype = packed ? matrix.dtype : activation_dtype_;
  return {.dtype = dtype, .num_bytes = row_bytes(dtype, matrix.num_elements())};
}

void CudaBackend::upload_matrix(const TensorView& to, const TensorView& from) {
  if (from.dtype == to.dtype && !is_quantized(to.dtype)) {
    upload(to.data, from.data, static_cast<std::size_t>(from.num_bytes()));
    return;
  }
  if (!is_quantized(from.dtype)) {
    const std::vector<std::uint16_t> bits = narrowed(from, to.dtype);
    upload(to.data, bits.data(), bits.size() * sizeof(bits.front()));
    return;
  }
  const std::int64_t bytes = row_bytes(from.dtype, from.dim(1));
  const std::int64_t rows =
      std::max<std::int64_t>(static_cast<std::int64_t>(kStagingBytes) / bytes / kPackedRows, 1) * kPackedRows;
  if (raw_.bytes() < static_cast<std::size_t>(rows * bytes)) raw_ = allocate(static_cast<std::size_t>(rows * bytes));
  for (std::int64_t first = 0; first < from.dim(0); first += rows) {
    const std::int64_t count = std::min(rows, from.dim(0) - first);
    upload(raw_.data(), from.row(first), static_cast<std::size_t>(count * bytes));
    const TensorView raw(raw_.data(), from.dtype, {count, from.dim(1)});
    if (to.dtype == from.dtype) {
      cuda::pack_weight(raw, to.rows(first, count), stream_);
    } else {
      cuda::dequantize(raw, to.rows(first, count), stream_);
    }
  }
  if (is_quantized(to.dtype) && unpacked_.bytes() == 0) unpacked_ = allocate(unpacked_bytes_);
}

void CudaBackend::prepare(const StepLimits& limits) {
  synchronize();
  raw_ = {};
  reserve_sampling(limits.max_logit_rows, limits.vocab_size);
}

// ---- replay

void CudaBackend::run(const ReplayKey& key, const std::function<void()>& ops) {
  use_device();
  graphs_.run(key, stream_, ops);
}

// ---- attention

void CudaBackend::check_attention(const KvLayer& kv, int num_heads) const {
  if (!cuda::supports_head_size(kv.head_size)) {
    fail(ErrorCode::kUnsupported, "the model's head_size is {}; attention on CUDA takes 64, 80, 96, 128 and 256", kv.head_size);
  }
  if (kv.dtype != activation_dtype_) {
    fail(ErrorCode::kUnsupported, "the KV pool is {}; attention on CUDA takes the type of activations, here {}",
         to_string(kv.dtype), to_string(activation_dtype_));
  }
  if (kv.block_size < 8 || kv.block_size > 256 || kv.block_size % 8 != 0) {
    fail(ErrorCode::kUnsupported, "block_size is {}; attention on CUDA takes multiples of 8 up to 256", kv.block_size);
  }
  QUIRE_CHECK_MSG(kv.num_heads > 0 && num_heads % kv.num_heads == 0, "{} heads on {} KV heads", num_heads, kv.num_heads);
}

cuda::SplitShape CudaBackend::split_shape(const AttentionShape& shape) const {
  return {.num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_size = shape.head_size,
          .window = shape.window,
          .num_sms = num_sms_,
          .rule = deterministic_ ? cuda::SplitRule::kDeterministic : cuda::SplitRule::kBalanced,
          .workspace_bytes = static_cast<std::int64_t>(kWorkspaceBytes)};
}

// Of the two lists either may be that of the whole step.
std::int64_t CudaBackend::most_list_bytes(const AttentionShape& shape, const StepLimits& limits) const {
  const cuda::SplitShape split = split_shape(shape);
  const auto most = [&](int tokens, int row_tile) {
    return most_ints(cuda::most_work(split, tokens, limits.max_sequences, limits.max_context, row_tile));
  };
  const std::int64_t decode = most(limits.max_sequences, deterministic_ ? cuda::kSmallPrefillTile : cuda::kDecodeRows);
  const std::int64_t prefill = most(limits.max_tokens, cuda::kSmallPrefillTile);
  return (decode + prefill) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

// Deterministic: decode rows go through the prefill kernel, for a row's bits may not tell which of the two computed it.
void CudaBackend::plan_attention(const AttentionShape& shape, AttentionLists& lists) const {
  const cuda::SplitShape split = split_shape(shape);
  const auto num_decode = static_cast<std::size_t>(shape.num_decode);
  const auto decode_rows = shape.q_indptr.first(num_decode + 1);
  const auto decode_lens = shape.kv_lens.first(num_decode);
  cuda::SplitPlan decode =
      deterministic_ ? cuda::plan_prefill(split, decode_rows, decode_lens) : cuda::plan_decode(split, decode_rows, decode_lens);
  cuda::SplitPlan prefill = cuda::plan_prefill(split, shape.q_indptr.subspan(num_decode), shape.kv_lens.subspan(num_decode));
  append_work(std::move(decode), lists.decode, lists.on_host);
  append_work(std::move(prefill), lists.prefill, lists.on_host);
}

PartialMemory CudaBackend::partial_memory() const { return {workspace_.data(), static_cast<std::int64_t>(kWorkspaceBytes)}; }

void CudaBackend::prefill_attention(const AttentionArgs& args) {
  cuda::prefill_attention(args, attention_plan(args.work, args.kv.head_size, partial_memory()), stream_);
}

void CudaBackend::decode_attention(const AttentionArgs& args) {
  if (deterministic_) return prefill_attention(args);
  cuda::decode_attention(args, attention_plan(args.work, args.kv.head_size, partial_memory()), stream_);
}

// ---- other ops

void CudaBackend::embed(const EmbedArgs& args) { cuda::embed(args, stream_); }
void CudaBackend::rms_norm(const RmsNormArgs& args) { cuda::rms_norm(args, stream_); }
void CudaBackend::add_rms_norm(const AddRmsNormArgs& args) { cuda::add_rms_norm(args, stream_); }
void CudaBackend::add(const AddArgs& args) { cuda::add(args, stream_); }
void CudaBackend::rope_table(const RopeTableArgs& args) { cuda::rope_table(args, stream_); }
void CudaBackend::rope(const RopeArgs& args) { cuda::rope(args, stream_); }
void CudaBackend::append_kv(const AppendKvArgs& args) { cuda::append_kv(args, stream_); }
void CudaBackend::rope_append_kv(const RopeAppendKvArgs& args) { cuda::rope_append_kv(args, stream_); }
void CudaBackend::gated_activation(const GatedActivationArgs& args) { cuda::gated_activation(args, stream_); }
void CudaBackend::gather_rows(const GatherRowsArgs& args) { cuda::gather_rows(args, stream_); }
void CudaBackend::softcap(const SoftcapArgs& args) { cuda::softcap(args, stream_); }
void CudaBackend::copy_blocks(const CopyBlocksArgs& args) { cuda::copy_blocks(args, stream_); }

// ---- products: by cuBLASLt, and packed weights by a kernel of our own for few rows

// The pieces of a packed weight that are made floats one after the other: visit(packed, product), with rows of the weight and
// their product once they are in `unpacked_`. They become columns of `out`.
template <typename Visit>
void CudaBackend::visit_unpacked(const Projection& projection, const Visit& visit) const {
  const std::int64_t inner = projection.weight.dim(1);
  const auto fitting = static_cast<std::int64_t>(unpacked_bytes_) / row_bytes(activation_dtype_, inner);
  const std::int64_t step = std::max<std::int64_t>(fitting / kPackedRows, 1) * kPackedRows;
  QUIRE_CHECK_MSG(fitting >= kPackedRows, "a weight of {} columns", inner);
  for (std::int64_t first = 0; first < projection.weight.dim(0); first += step) {
    const std::int64_t count = std::min(step, projection.weight.dim(0) - first);
    const auto columns = [&](const TensorView& whole) {
      TensorView part = whole;
      part.data = whole.as<std::byte>() + row_bytes(whole.dtype, first);
      part.shape[static_cast<std::size_t>(whole.rank) - 1] = count;
      return part;
    };
    const TensorView unpacked(unpacked_.data(), activation_dtype_, {count, inner});
    const TensorView bias = projection.bias.data == nullptr ? TensorView() : columns(projection.bias);
    visit(projection.weight.rows(first, count), Projection{unpacked, bias, columns(projection.out)});
  }
}

void CudaBackend::prepare_matmul(const MatmulArgs& largest) {
  use_device();
  for (int i = 0; i < largest.num_projections; ++i) {
    const Projection& projection = largest.projections[i];
    const auto prepare = [&](const Projection& one, std::int64_t least_rows) {
      matmul_->prepare({.x = largest.x, .num_projections = 1, .projections = {one}}, least_rows);
    };
    if (!is_quantized(projection.weight.dtype)) {
      prepare(projection, 1);
    } else if (largest.x.dim(0) > kMostPackedRows) {
      visit_unpacked(projection, [&](const TensorView&, const Projection& piece) { prepare(piece, kMostPackedRows + 1); });
    }
  }
}

void CudaBackend::matmul(const MatmulArgs& args) {
  for (int i = 0; i < args.num_projections; ++i) {
    const auto product = [&](const Projection& projection) {
      return MatmulArgs{.x = args.x, .num_projections = 1, .projections = {projection}};
    };
    const Projection& projection = args.projections[i];
    if (!is_quantized(projection.weight.dtype)) {
      (*matmul_)(product(projection), stream_);
    } else if (args.x.dim(0) <= kMostPackedRows) {
      cuda::matmul_quantized(product(projection), stream_);
    } else {
      visit_unpacked(projection, [&](const TensorView& packed, const Projection& piece) {
        cuda::unpack_weight(packed, piece.weight, stream_);
        (*matmul_)(product(piece), stream_);
      });
    }
  }
}

// ---- sampling: rows up, tokens down, and the wait for them

void CudaBackend::reserve_sampling(std::int64_t rows, std::int64_t vocabulary) {
  if (rows <= sampling_.rows && vocabulary <= sampling_.vocabulary) return;
  const std::int64_t largest = cuda::most_packed_bytes(vocabulary);
  const auto packed = static_cast<std::size_t>(std::max(largest, std::min(rows * largest, kMostPackedBytes)));
  Sampling made{.rows = rows,
                .vocabulary = vocabulary,
                .packed_bytes = round_up(packed, kAlignment),
                .results_bytes = round_up(static_cast<std::size_t>(rows) * sizeof(SampleResult), kAlignment)};
  sampling_ = {};  // first: both may not fit
  made.memory = allocate(made.packed_bytes + made.results_bytes + cuda::sample_scratch_bytes(rows, vocabulary));
  sampling_ = std::move(made);
}

// As many rows at a time as fit: nearly always all.
void CudaBackend::sample(const SampleArgs& args) {
  use_device();
  const std::int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  reserve_sampling(rows, vocabulary);
  for (std::int64_t first = 0, count = 0; first < rows; first += count) {
    auto room = static_cast<std::int64_t>(sampling_.packed_bytes);
    for (count = 0; first + count < rows; ++count) {
      room -= cuda::packed_bytes(args.rows[first + count], vocabulary);
      if (room < 0) break;
    }
    QUIRE_CHECK_MSG(count > 0, "sample: row {} has more counts, biases or bits than there are tokens", first);
    sample_packed({args.logits.rows(first, count), args.rows + first, args.results + first});
  }
}

void CudaBackend::sample_packed(const SampleArgs& args) {
  const std::int64_t rows = args.logits.dim(0);
  cuda::pack_sample_rows(args.rows, rows, args.logits.dim(1), packed_rows_);
  auto* memory = static_cast<std::byte*>(sampling_.memory.data());
  auto* results = reinterpret_cast<SampleResult*>(memory + sampling_.packed_bytes);
  upload(memory, packed_rows_.data(), packed_rows_.size());
  cuda::sample({.logits = args.logits,
                .rows = memory,
                .scratch = reinterpret_cast<float*>(memory + sampling_.packed_bytes + sampling_.results_bytes),
                .results = results},
               stream_);
  download(args.results, results, static_cast<std::size_t>(rows) * sizeof(SampleResult));
}

}  // namespace quire
