// Element by element: gated activations, the soft cap of logits, and the sum of a residual. One thread computes one chunk.
//
// Blocks of 256 threads, at most 32 registers each for sm_90a (nvcc 13.0), no shared memory: an SM of an H200 holds all of its
// 2,048 threads. They are bound by memory. With 16 bytes of both inputs a thread, 64 KB are in flight per SM, where 27 KB hide
// the latency; the soft cap has 8 KB, but its logits were just written and come from L2.
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {
namespace {

// x * sigmoid(x).
QUIRE_DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// Hendrycks & Gimpel 2016, arXiv:1606.08415, the approximation by tanh.
QUIRE_DEVICE float gelu_tanh(float x) {
  constexpr float kRootOfTwoOverPi = 0.7978845608f;
  return 0.5f * x * (1.0f + tanhf(kRootOfTwoOverPi * fmaf(0.044715f * x * x, x, x)));
}

template <typename T>
__global__ void gated_activation_kernel(Rows<const T> gate, Rows<const T> up, Rows<T> out, Activation activation) {
  const RowPiece at = piece_of_row(num_chunks(out.size));
  if (at.piece >= num_chunks(out.size)) return;
  float x[kChunk], factor[kChunk];
  gate[at.row].load(at.piece, x);
  up[at.row].load(at.piece, factor);
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; ++i) x[i] = (activation == Activation::kSilu ? silu(x[i]) : gelu_tanh(x[i])) * factor[i];
  out[at.row].store(at.piece, x);
}

// A thread, an element: neighbours in a warp already fill whole sectors of F32.
__global__ void softcap_kernel(Rows<float> logits, float cap) {
  const RowPiece at = piece_of_row(logits.size);
  if (at.piece >= logits.size) return;
  float* logit = logits[at.row].data + at.piece;
  store_global(logit, cap * tanhf(load_global(logit) / cap));
}

template <typename T>
__global__ void add_kernel(Rows<T> residual, Rows<const T> x) {
  const RowPiece at = piece_of_row(num_chunks(residual.size));
  if (at.piece >= num_chunks(residual.size)) return;
  float sum[kChunk], addend[kChunk];
  residual[at.row].load(at.piece, sum);
  x[at.row].load(at.piece, addend);
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; ++i) sum[i] += addend[i];
  residual[at.row].store(at.piece, sum);
}

LaunchShape chunks_shape(const TensorView& matrix) {
  return row_pieces_shape(matrix.dim(0), (matrix.dim(1) + kChunk - 1) / kChunk);
}

void check_same(const char* op, const char* field, const TensorView& value, const TensorView& first, const char* rule) {
  require(is_shaped(value, first.dtype, {first.dim(0), first.dim(1)}), op, field, value, rule);
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, Stream stream) {
  const char* op = "gated_activation";
  require(args.gate.rank == 2 && is_activation(args.gate.dtype), op, "gate", args.gate, "[R, F] BF16 or F16");
  check_same(op, "gate", args.gate, args.gate, "rows that do not overlap");
  check_same(op, "up", args.up, args.gate, "of gate's shape and type");
  check_same(op, "out", args.out, args.gate, "of gate's shape and type");
  dispatch_activation(args.gate.dtype, [&]<typename T>() {
    launch(stream, gated_activation_kernel<T>, chunks_shape(args.gate), rows_of<const T>(args.gate), rows_of<const T>(args.up),
           rows_of<T>(args.out), args.activation);
  });
}

void softcap(const SoftcapArgs& args, Stream stream) {
  const char* op = "softcap";
  require(args.logits.rank == 2 && args.logits.dtype == DType::kF32, op, "logits", args.logits, "[R, V] F32");
  check_same(op, "logits", args.logits, args.logits, "rows that do not overlap");
  if (!(args.cap > 0.0f)) refuse(op, "cap", static_cast<std::int64_t>(args.cap), "above 0");
  launch(stream, softcap_kernel, row_pieces_shape(args.logits.dim(0), args.logits.dim(1)), rows_of<float>(args.logits), args.cap);
}

void add(const AddArgs& args, Stream stream) {
  const char* op = "add";
  require(args.residual.rank == 2 && is_activation(args.residual.dtype), op, "residual", args.residual, "[R, H] BF16 or F16");
  check_same(op, "residual", args.residual, args.residual, "rows that do not overlap");
  check_same(op, "x", args.x, args.residual, "of residual's shape and type");
  dispatch_activation(args.residual.dtype, [&]<typename T>() {
    launch(stream, add_kernel<T>, chunks_shape(args.residual), rows_of<T>(args.residual), rows_of<const T>(args.x));
  });
}

}  // namespace quire::cuda
