// Backend: a device. Memory, transfers, and one virtual function per op of kernels/ops.h; nothing about models.
// One thread at a time. Ops run in order; on an asynchronous device they return before they have run, synchronize() waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "quire/device.h"

namespace quire {

// Memory of a device, given back when the owner goes.
class DeviceBuffer {
 public:
  using Free = void (*)(void*, std::size_t);
  DeviceBuffer() = default;
  DeviceBuffer(void* data, std::size_t bytes, Free free) : data_(data), bytes_(bytes), free_(free) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) free_(data_, bytes_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
  }
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Free free_ = nullptr;
};

struct BackendOptions {
  int num_threads = 0;  // CPU backend: threads that compute; 0: the cores this process may use
  // CUDA: type of activations and of keys and values in attention, BF16 or F16. The CPU computes in F32.
  DType activation_dtype = DType::kBF16;
  // CUDA: bits of a row depend on that row alone, as they always do on the CPU, at some cost in speed.
  bool deterministic = true;
};

// The new tokens of a step's sequences, on the host: what the work of attention is divided by.
struct AttentionShape {
  std::span<const std::int32_t> q_indptr;  // [S + 1] absolute rows of q
  std::span<const std::int32_t> kv_lens;   // [S] the new tokens included
  int num_decode = 0;                      // the first sequences, of one new token each
  int window = 0;                          // positions seen; 0: all
  int num_heads = 0;                       // Hq
  int num_kv_heads = 0;                    // Hkv
  int head_size = 0;                       // D
};

// How a backend divides the attention of a step's sequences: what becomes AttentionWork, of no meaning to others.
struct AttentionLists {
  std::vector<std::int32_t> decode;   // of the first num_decode sequences
  std::vector<std::int32_t> prefill;  // of the others
  // All that launches take from the lists on the host: where it is equal, and the lists are equally long, launches are equal.
  std::vector<std::int32_t> on_host;
};

// All that the arguments of a step's ops depend on, word by word. Compared as it is, never by a digest. Empty: no such promise.
using ReplayKey = std::vector<std::uint64_t>;

// The largest step of an engine.
struct StepLimits {
  int max_tokens = 0;      // T, padded rows included
  int max_sequences = 0;   // S, padded rows included
  int max_context = 0;     // positions of a sequence
  int max_logit_rows = 0;  // R of one sample()
  int vocab_size = 0;      // V
};

// What ops do with a matrix.
enum class MatrixUse : std::uint8_t {
  kProduct,  // weight of matmul
  kLookup,   // table of embed
  kBoth,     // table of embed and, where embedding and head are tied, weight of matmul
};

// How a device keeps a matrix of a file.
struct MatrixForm {
  DType dtype = DType::kF32;
  Layout layout = Layout::kRows;
  std::int64_t num_bytes = 0;
  bool in_place = false;  // can be read where the file is mapped, if it is aligned there
};

// A matrix in host memory and its place on a device.
struct MatrixUpload {
  TensorView to, from;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  virtual std::string isa() const = 0;         // "portable", "avx2", "avx512", "amx", "sm_90", ...
  virtual std::size_t free_bytes() const = 0;  // memory that could be allocated now
  virtual DType activation_dtype() const = 0;  // of TensorViews between ops

  // Uninitialised memory, 64-byte aligned at least. Throws Error(kOutOfMemory) naming the size.
  virtual DeviceBuffer allocate(std::size_t bytes) = 0;
  // Whether host memory (a mapped file, a host array) can be read by ops in place.
  virtual bool reads_host_memory() const = 0;
  // What becomes of `matrix` of a file on this device: upload_matrix() converts.
  virtual MatrixForm matrix_form(const TensorView& matrix, MatrixUse use) const = 0;
  // Fills `to`, of matrix_form(from) and from's shape, with `from`, in host memory. The bytes on the device are the device's
  // business even where type and layout are the same: it may keep them in another order.
  virtual void upload_matrix(const TensorView& to, const TensorView& from) = 0;
  // The same for several at once. What lies one after the other, on both sides, is best uploaded together.
  virtual void upload_matrices(std::span<const MatrixUpload> uploads) {
    for (const MatrixUpload& upload : uploads) upload_matrix(upload.to, upload.from);
  }
  // In order with the ops; the host's memory is free again on return.
  virtual void upload(void* to_device, const void* from_host, std::size_t bytes) = 0;
  virtual void download(void* to_host, const void* from_device, std::size_t bytes) = 0;  // waits
  virtual void synchronize() = 0;
  virtual bool is_asynchronous() const { return false; }  // ops return before they have run

  // Once all weights are uploaded: gives back what only that needed, and takes the memory that ops of steps will want, so that no
  // op of a step within `limits` allocates on the device.
  virtual void prepare(const StepLimits& limits) { (void)limits; }
  // Once for each product of steps, as the largest step makes it: what it and products of fewer rows will want is chosen now.
  // Throws Error(kUnsupported) naming a product that the device lacks.
  virtual void prepare_matmul(const MatmulArgs& largest) { (void)largest; }

  // Refuses a model's KV layout that attention on this device does not support: Error(kUnsupported) naming what.
  virtual void check_attention(const KvLayer& kv, int num_heads) const = 0;
  // Called once a step for each KV group, before its arrays are uploaded. Adds to the empty `lists`; on the CPU nothing.
  virtual void plan_attention(const AttentionShape& shape, AttentionLists& lists) const = 0;
  // Bytes of both lists at most, in any step within `limits`. Of `shape`: heads and window.
  virtual std::int64_t most_list_bytes(const AttentionShape& shape, const StepLimits& limits) const {
    (void)shape, (void)limits;
    return 0;
  }

  // Whether run() may replay: then steps of decode rows are worth padding to few different shapes.
  virtual bool replays() const { return false; }
  // Calls `ops`, which calls ops of this backend and nothing else of it. May record what they launch under `key` and launch that
  // again in the place of later calls with the same key: then every argument, pointers included, must be a function of the key.
  // An empty key: never.
  virtual void run(const ReplayKey& key, const std::function<void()>& ops) {
    (void)key;
    ops();
  }

  virtual void embed(const EmbedArgs&) = 0;
  virtual void rms_norm(const RmsNormArgs&) = 0;
  virtual void add_rms_norm(const AddRmsNormArgs&) = 0;
  virtual void add(const AddArgs&) = 0;
  virtual void matmul(const MatmulArgs&) = 0;
  virtual void rope_table(const RopeTableArgs&) = 0;
  virtual void rope(const RopeArgs&) = 0;
  virtual void append_kv(const AppendKvArgs&) = 0;
  virtual void rope_append_kv(const RopeAppendKvArgs& args) {
    rope({.x = args.q, .cos_sin = args.cos_sin, .kind = args.kind});
    rope({.x = args.k, .cos_sin = args.cos_sin, .kind = args.kind});
    append_kv({.k = args.k, .v = args.v, .slots = args.slots, .kv = args.kv});
  }
  virtual void prefill_attention(const AttentionArgs&) = 0;
  virtual void decode_attention(const AttentionArgs&) = 0;
  virtual void gated_activation(const GatedActivationArgs&) = 0;
  virtual void gather_rows(const GatherRowsArgs&) = 0;
  virtual void softcap(const SoftcapArgs&) = 0;
  virtual void sample(const SampleArgs&) = 0;  // results are there on return: the one wait of a step
  virtual void copy_blocks(const CopyBlocksArgs&) = 0;
};

// The one place that asks whether CUDA is built in. Throws Error(kUnsupported) for a device that this build or machine lacks.
std::unique_ptr<Backend> create_backend(Device device, const BackendOptions& options = {});

}  // namespace quire
