// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 34): the table of a step, the rotation in place, and the fused
// form that rotates q and k and writes k and v to the pool in one pass. A thread rotates eight pairs of one head.
//
//   kernel                  registers (sm_80, sm_90a)   blocks of 256 threads per SM (H200)   bound by
//   rope_kernel             47, 47                      5, 62% of its threads                 registers
//   rope_append_kv_kernel   50, 47                      5, 62%                                registers
//   rope_table_kernel       28, 28, and 40 bytes        8, all                                threads
//
// (nvcc 13.0, no shared memory; the table's 40 bytes of stack are the reduction of huge angles, see scripts/kernel_table.py. Rows
// of fewer pieces have smaller blocks, and an SM more of them.) The two that rotate are bound by memory: a thread reads 32 bytes
// of its head and 64 of the table at once, 120 KB per SM, where 27 KB hide the latency. The table is once a step.
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_arguments.h"
#include "kernels/cuda/kv_row.cuh"

namespace quire::cuda {
namespace {

// Angles in double: position * frequency has more digits than a float.
__global__ void rope_table_kernel(const std::int32_t* positions, Row<const float> inv_freq, double magnitude,
                                  Rows<float> cos_sin) {
  const RowPiece at = piece_of_row(inv_freq.size);
  if (at.piece >= inv_freq.size) return;
  const double angle = static_cast<double>(positions[at.row]) * static_cast<double>(inv_freq.data[at.piece]);
  float* pair = cos_sin[at.row].data + 2 * at.piece;
  pair[0] = static_cast<float>(cos(angle) * magnitude);
  pair[1] = static_cast<float>(sin(angle) * magnitude);
}

// Pairs 8 g to 8 g + 7 of a head of `rot` elements.
struct Pairs {
  float a[kChunk], b[kChunk];
};

template <typename T>
QUIRE_DEVICE Pairs load_neighbours(const Row<T>& row, int group) {
  float low[kChunk], high[kChunk];
  row.load(2 * group, low);
  row.load(2 * group + 1, high);
  Pairs pairs;
  QUIRE_UNROLL
  for (int i = 0; i < kChunk / 2; ++i) {
    pairs.a[i] = low[2 * i], pairs.b[i] = low[2 * i + 1];
    pairs.a[i + kChunk / 2] = high[2 * i], pairs.b[i + kChunk / 2] = high[2 * i + 1];
  }
  return pairs;
}

template <typename T>
QUIRE_DEVICE Pairs load_pairs(const Row<T>& head, RopeKind kind, int group) {
  if (kind == RopeKind::kInterleaved) return load_neighbours(head, group);
  Pairs pairs;
  head.part(0, head.size / 2).load(group, pairs.a);
  head.part(head.size / 2, head.size / 2).load(group, pairs.b);
  return pairs;
}

// `Target`: Row or KvRow.
template <typename Target>
QUIRE_DEVICE void store_pairs(const Target& head, RopeKind kind, int group, const Pairs& pairs) {
  if (kind == RopeKind::kHalfSplit) {
    head.part(0, head.size / 2).store(group, pairs.a);
    head.part(head.size / 2, head.size / 2).store(group, pairs.b);
    return;
  }
  float low[kChunk], high[kChunk];
  QUIRE_UNROLL
  for (int i = 0; i < kChunk / 2; ++i) {
    low[2 * i] = pairs.a[i], low[2 * i + 1] = pairs.b[i];
    high[2 * i] = pairs.a[i + kChunk / 2], high[2 * i + 1] = pairs.b[i + kChunk / 2];
  }
  head.store(2 * group, low);
  head.store(2 * group + 1, high);
}

// (a, b) -> (a cos - b sin, b cos + a sin).
QUIRE_DEVICE void rotate(const Row<const float>& cos_sin, int group, Pairs& pairs) {
  const Pairs factors = load_neighbours(cos_sin, group);
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; ++i) {
    const float a = pairs.a[i], b = pairs.b[i], cos = factors.a[i], sin = factors.b[i];
    pairs.a[i] = fmaf(a, cos, -__fmul_rn(b, sin));
    pairs.b[i] = fmaf(b, cos, __fmul_rn(a, sin));
  }
}

// Pieces of a head: groups of eight pairs, then as many elements each of what is not rotated.
QUIRE_DEVICE int num_groups(int elements) { return (elements + 2 * kChunk - 1) / (2 * kChunk); }

template <typename T>
__global__ void rope_kernel(Rows<T> x, int heads, int head_size, Rows<const float> cos_sin, RopeKind kind) {
  const int groups = num_groups(cos_sin.size);
  const RowPiece at = piece_of_row(heads * groups);
  if (at.piece >= heads * groups) return;
  const Row<T> rotated = x[at.row].part(at.piece / groups * head_size, head_size).part(0, cos_sin.size);
  Pairs pairs = load_pairs(rotated, kind, at.piece % groups);
  rotate(cos_sin[at.row], at.piece % groups, pairs);
  store_pairs(rotated, kind, at.piece % groups, pairs);
}

template <typename T>
struct RopeAppendParams {
  Rows<T> q;                  // [T, Hq, D]
  Rows<const T> k;            // [T, Hkv, D]
  Rows<const T> v;            // [T, Hkv, D]
  Rows<const float> cos_sin;  // [T, rot / 2, 2]
  const std::int64_t* slots;  // [T]
  KvPool pool;
  int num_heads;  // Hq
  RopeKind kind;
};

// Two chunks of elements as they are.
template <typename T>
QUIRE_DEVICE void copy_group(const Row<const T>& from, const KvRow& to, int group) {
  QUIRE_UNROLL
  for (int chunk = 2 * group; chunk < 2 * group + 2; ++chunk) {
    float x[kChunk];
    from.load(chunk, x);
    to.store(chunk, x);
  }
}

// The pieces of a token: its heads of q, then of k, then of v.
template <typename T>
__global__ void rope_append_kv_kernel(RopeAppendParams<T> p) {
  const int rot = p.cos_sin.size, size = p.pool.layer.head_size, kv_heads = p.pool.layer.num_heads;
  const int rotated_groups = num_groups(rot), groups = rotated_groups + num_groups(size - rot);
  const RowPiece at = piece_of_row((p.num_heads + 2 * kv_heads) * groups);
  const int group = at.piece % groups, head = at.piece / groups;
  if (head < p.num_heads) {
    if (group >= rotated_groups) return;
    const Row<T> rotated = p.q[at.row].part(head * size, size).part(0, rot);
    Pairs pairs = load_pairs(rotated, p.kind, group);
    rotate(p.cos_sin[at.row], group, pairs);
    store_pairs(rotated, p.kind, group, pairs);
    return;
  }
  const std::int64_t slot = p.slots[at.row];
  const int kv_head = (head - p.num_heads) % kv_heads;
  if (head >= p.num_heads + 2 * kv_heads || slot < 0) return;
  if (head >= p.num_heads + kv_heads) {
    copy_group(p.v[at.row].part(kv_head * size, size), kv_row(p.pool, p.pool.layer.values, slot, kv_head), group);
    return;
  }
  const Row<const T> k = p.k[at.row].part(kv_head * size, size);
  const KvRow to = kv_row(p.pool, p.pool.layer.keys, slot, kv_head);
  if (group >= rotated_groups) {
    copy_group(k.part(rot, size - rot), to.part(rot, size - rot), group - rotated_groups);
    return;
  }
  Pairs pairs = load_pairs(k.part(0, rot), p.kind, group);
  rotate(p.cos_sin[at.row], group, pairs);
  round_to<T>(pairs.a);  // as rope() leaves them
  round_to<T>(pairs.b);
  store_pairs(to.part(0, rot), p.kind, group, pairs);
}

// Returns rot.
std::int64_t check_rotation(const char* op, const char* field, const TensorView& x, const TensorView& cos_sin) {
  require(x.rank == 3 && is_activation(x.dtype), op, field, x, "[T, heads, D] BF16 or F16");
  require(is_shaped(x, x.dtype, {x.dim(0), x.dim(1), x.dim(2)}), op, field, x, "rows that do not overlap");
  require(cos_sin.rank == 3, op, "cos_sin", cos_sin, "[T, rot / 2, 2] F32");
  const std::int64_t pairs = cos_sin.dim(1);
  require(is_shaped(cos_sin, DType::kF32, {x.dim(0), pairs, 2}), op, "cos_sin", cos_sin, "[T, rot / 2, 2] F32");
  require(pairs > 0 && 2 * pairs <= x.dim(2), op, "rot", 2 * pairs, "2 to D");
  return 2 * pairs;
}

std::int64_t groups_of(std::int64_t elements) { return (elements + 2 * kChunk - 1) / (2 * kChunk); }

}  // namespace

void rope_table(const RopeTableArgs& args, Stream stream) {
  const char* op = "rope_table";
  const std::int64_t tokens = args.positions.dim(0), pairs = args.inv_freq.dim(0);
  require(is_shaped(args.positions, DType::kI32, {tokens}), op, "positions", args.positions, "[T] I32");
  require(is_shaped(args.inv_freq, DType::kF32, {pairs}), op, "inv_freq", args.inv_freq, "[rot / 2] F32");
  require(is_shaped(args.cos_sin, DType::kF32, {tokens, pairs, 2}), op, "cos_sin", args.cos_sin, "[T, rot / 2, 2] F32");
  const Row<const float> inv_freq{args.inv_freq.as<const float>(), static_cast<int>(pairs), false};
  launch(stream, rope_table_kernel, row_pieces_shape(tokens, pairs), args.positions.as<const std::int32_t>(), inv_freq,
         static_cast<double>(args.magnitude), rows_of<float>(args.cos_sin));
}

void rope(const RopeArgs& args, Stream stream) {
  const std::int64_t rot = check_rotation("rope", "x", args.x, args.cos_sin);
  const std::int64_t heads = args.x.dim(1);
  dispatch_activation(args.x.dtype, [&]<typename T>() {
    launch(stream, rope_kernel<T>, row_pieces_shape(args.x.dim(0), heads * groups_of(rot)), rows_of<T>(args.x), heads,
           args.x.dim(2), rows_of<const float>(args.cos_sin), args.kind);
  });
}

void rope_append_kv(const RopeAppendKvArgs& args, Stream stream) {
  const char* op = "rope_append_kv";
  check_new_kv(op, args.k, args.v, args.slots, args.kv);
  const std::int64_t rot = check_rotation(op, "q", args.q, args.cos_sin);
  require(is_shaped(args.q, args.k.dtype, {args.k.dim(0), args.q.dim(1), args.kv.head_size}), op, "q", args.q,
          "[T, Hq, D] of k's type");
  const std::int64_t groups = groups_of(rot) + groups_of(args.kv.head_size - rot);
  dispatch_activation(args.q.dtype, [&]<typename T>() {
    const RopeAppendParams<T> params{rows_of<T>(args.q),
                                     rows_of<const T>(args.k),
                                     rows_of<const T>(args.v),
                                     rows_of<const float>(args.cos_sin),
                                     args.slots.as<const std::int64_t>(),
                                     kv_pool_of(args.kv),
                                     static_cast<int>(args.q.dim(1)),
                                     args.kind};
    launch(stream, rope_append_kv_kernel<T>, row_pieces_shape(args.q.dim(0), (args.q.dim(1) + 2 * args.kv.num_heads) * groups),
           params);
  });
}

}  // namespace quire::cuda
