#include "engine/upload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

constexpr std::size_t kAlignment = 64;  // bytes, of each array in the buffer

template <typename T>
TensorView view_of(std::span<const T> values) {
  constexpr DType kType = sizeof(T) == 8 ? DType::kI64 : DType::kI32;
  // Ops only read these arrays; TensorView has no const twin.
  return TensorView(const_cast<T*>(values.data()), kType, {static_cast<std::int64_t>(values.size())});
}

constexpr std::size_t padded(std::size_t bytes) { return round_up(bytes, kAlignment); }
// So that steps of decode rows have few different offsets, and can be replayed, room for pages grows by powers of two.
constexpr std::size_t padded_pages(std::size_t bytes) { return padded(std::bit_ceil(bytes)); }

}  // namespace

BatchUploader::BatchUploader(Backend& backend, Shape shape, const StepLimits& limits)
    : backend_(backend), shape_(std::move(shape)), lists_(shape_.windows.size()) {
  if (backend_.reads_host_memory()) return;
  device_ = backend_.allocate(most_bytes(limits));
}

AttentionShape BatchUploader::attention_shape(std::size_t group) const {
  AttentionShape shape;
  shape.window = shape_.windows[group];
  shape.num_heads = shape_.num_heads;
  shape.num_kv_heads = shape_.num_kv_heads;
  shape.head_size = shape_.head_size;
  return shape;
}

// Of the arrays that to_device() lays out. Sequences share blocks, so each may have a table as long as the context.
std::size_t BatchUploader::most_bytes(const StepLimits& limits) const {
  const auto tokens = static_cast<std::size_t>(limits.max_tokens), sequences = static_cast<std::size_t>(limits.max_sequences);
  const auto pages = static_cast<std::size_t>(ceil_div(limits.max_context, shape_.block_size));
  constexpr std::size_t kI32 = 4, kI64 = 8;
  std::size_t bytes = 3 * padded(tokens * kI32) + padded((sequences + 1) * kI32) + padded(sequences * kI32);
  for (std::size_t g = 0; g < shape_.windows.size(); ++g) {
    bytes += padded(tokens * kI64) + padded((sequences + 1) * kI32) + padded_pages(sequences * pages * kI32);
    bytes += padded(static_cast<std::size_t>(backend_.most_list_bytes(attention_shape(g), limits))) + kAlignment;  // two lists
  }
  return bytes;
}

void BatchUploader::plan_attention(const HostBatch& host) {
  QUIRE_CHECK_MSG(host.groups.size() == lists_.size(), "{} KV groups, {} windows", host.groups.size(), lists_.size());
  for (std::size_t g = 0; g < lists_.size(); ++g) {
    lists_[g].decode.clear();
    lists_[g].prefill.clear();
    lists_[g].on_host.clear();
    AttentionShape shape = attention_shape(g);
    shape.q_indptr = host.q_indptr;
    shape.kv_lens = host.kv_lens;
    shape.num_decode = host.num_decode;
    backend_.plan_attention(shape, lists_[g]);
  }
}

Batch BatchUploader::upload(const HostBatch& host) {
  plan_attention(host);
  Batch batch;
  batch.num_tokens = static_cast<int>(host.token_ids.size());
  batch.num_sequences = static_cast<int>(host.kv_lens.size());
  batch.num_decode = host.num_decode;
  batch.groups.resize(host.groups.size());
  batch.token_ids = view_of<std::int32_t>(host.token_ids);
  batch.positions = view_of<std::int32_t>(host.positions);
  batch.q_indptr = view_of<std::int32_t>(host.q_indptr);
  batch.kv_lens = view_of<std::int32_t>(host.kv_lens);
  for (std::size_t g = 0; g < host.groups.size(); ++g) {
    BatchGroup& group = batch.groups[g];
    group.slots = view_of<std::int64_t>(host.groups[g].slots);
    group.page_indptr = view_of<std::int32_t>(host.groups[g].page_indptr);
    group.page_indices = view_of<std::int32_t>(host.groups[g].page_indices);
    group.decode_work = {lists_[g].decode.data(), view_of<std::int32_t>(lists_[g].decode)};
    group.prefill_work = {lists_[g].prefill.data(), view_of<std::int32_t>(lists_[g].prefill)};
  }
  batch.logit_rows = view_of<std::int32_t>(host.logit_rows);
  if (backend_.reads_host_memory()) return batch;

  return to_device(batch);
}

// One buffer for all arrays, each at an offset that depends on the sizes of those before it.
Batch BatchUploader::to_device(Batch batch) {
  std::vector<TensorView*> views = {&batch.token_ids, &batch.positions, &batch.q_indptr, &batch.kv_lens};
  for (BatchGroup& group : batch.groups) {
    views.insert(views.end(), {&group.slots, &group.page_indptr, &group.decode_work.on_device, &group.prefill_work.on_device,
                               &group.page_indices});
  }
  views.push_back(&batch.logit_rows);
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const TensorView* view : views) {
    offsets.push_back(bytes);
    const auto size = static_cast<std::size_t>(view->num_bytes());
    const bool is_pages = std::any_of(batch.groups.begin(), batch.groups.end(),
                                      [&](const BatchGroup& group) { return view == &group.page_indices; });
    bytes += is_pages ? padded_pages(size) : padded(size);
  }
  QUIRE_CHECK_MSG(bytes <= device_.bytes(), "a step's arrays take {} bytes, more than the {} of the largest", bytes,
                  device_.bytes());
  staging_.resize(bytes);
  auto* device = static_cast<std::byte*>(device_.data());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const auto size = static_cast<std::size_t>(views[i]->num_bytes());
    if (size > 0) std::memcpy(staging_.data() + offsets[i], views[i]->data, size);
    views[i]->data = device + offsets[i];
  }
  backend_.upload(device, staging_.data(), bytes);
  if (batch.num_decode == batch.num_sequences) batch.replay_key = replay_key(batch, offsets);
  return batch;
}

// All that a view of the batch can differ in, but for the number of pages, which no launch depends on, and the rows of logits,
// the last array, which nothing that is replayed reads.
ReplayKey BatchUploader::replay_key(const Batch& batch, std::span<const std::size_t> offsets) const {
  ReplayKey key;
  key.push_back(reinterpret_cast<std::uintptr_t>(device_.data()));
  key.push_back(static_cast<std::uint64_t>(batch.num_sequences));
  key.insert(key.end(), offsets.begin(), offsets.end() - 1);
  for (const AttentionLists& lists : lists_) {
    key.push_back(lists.decode.size());
    key.push_back(lists.on_host.size());
    for (const std::int32_t value : lists.on_host) key.push_back(static_cast<std::uint32_t>(value));
  }
  return key;
}

}  // namespace quire
