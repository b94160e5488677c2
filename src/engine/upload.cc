#include "engine/upload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

constexpr std::size_t kAlignment = 64;  // bytes, of each array in the buffer
constexpr std::uint64_t kKeySeed = 0x51756972652e2e2e, kKeyFactor = 0x9e3779b97f4a7c15;

template <typename T>
TensorView view_of(std::span<const T> values) {
  constexpr DType kType = sizeof(T) == 8 ? DType::kI64 : DType::kI32;
  // Ops only read these arrays; TensorView has no const twin.
  return TensorView(const_cast<T*>(values.data()), kType, {static_cast<std::int64_t>(values.size())});
}

DeviceBuffer& grown(Backend& backend, DeviceBuffer& buffer, std::size_t bytes) {
  if (buffer.bytes() < bytes) buffer = backend.allocate(bytes + bytes / 2);
  return buffer;
}

}  // namespace

void BatchUploader::plan_attention(const HostBatch& host) {
  QUIRE_CHECK_MSG(host.groups.size() == windows_.size(), "{} KV groups, {} windows", host.groups.size(), windows_.size());
  lists_.resize(windows_.size());
  for (std::size_t g = 0; g < windows_.size(); ++g) {
    lists_[g].decode.clear();
    lists_[g].prefill.clear();
    lists_[g].launch_key = 0;
    backend_.plan_attention({.q_indptr = host.q_indptr,
                             .kv_lens = host.kv_lens,
                             .num_decode = host.num_decode,
                             .window = windows_[g],
                             .num_heads = num_heads_,
                             .num_kv_heads = kv_.num_heads,
                             .head_size = kv_.head_size},
                            lists_[g]);
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
  if (backend_.reads_host_memory()) return batch;

  return to_device(batch);
}

// One buffer for all arrays, each at an offset that depends on the sizes of those before it. So that steps of decode rows have
// few different offsets, and can be replayed, room for pages grows by powers of two.
Batch BatchUploader::to_device(Batch batch) {
  std::vector<TensorView*> views = {&batch.token_ids, &batch.positions, &batch.q_indptr, &batch.kv_lens};
  for (BatchGroup& group : batch.groups) {
    views.insert(views.end(), {&group.slots, &group.page_indptr, &group.decode_work.on_device, &group.prefill_work.on_device,
                               &group.page_indices});
  }
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const TensorView* view : views) {
    offsets.push_back(bytes);
    const auto size = static_cast<std::size_t>(view->num_bytes());
    const bool is_pages = std::any_of(batch.groups.begin(), batch.groups.end(),
                                      [&](const BatchGroup& group) { return view == &group.page_indices; });
    bytes += round_up(is_pages ? std::bit_ceil(size) : size, kAlignment);
  }
  staging_.resize(bytes);
  auto* device = static_cast<std::byte*>(grown(backend_, device_, bytes).data());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const auto size = static_cast<std::size_t>(views[i]->num_bytes());
    if (size > 0) std::memcpy(staging_.data() + offsets[i], views[i]->data, size);
    views[i]->data = device + offsets[i];
  }
  backend_.upload(device, staging_.data(), bytes);
  if (batch.num_decode == batch.num_sequences) batch.replay_key = replay_key(batch, offsets);
  return batch;
}

// All that a view of the batch can differ in, but for the number of pages, which no launch depends on.
std::uint64_t BatchUploader::replay_key(const Batch& batch, std::span<const std::size_t> offsets) const {
  std::uint64_t key = kKeySeed;
  const auto mix = [&key](std::uint64_t value) { key = (key ^ value) * kKeyFactor, key ^= key >> 32; };
  mix(reinterpret_cast<std::uintptr_t>(device_.data()));
  mix(static_cast<std::uint64_t>(batch.num_sequences));
  for (const std::size_t offset : offsets) mix(offset);
  for (const AttentionLists& lists : lists_) {
    mix(lists.launch_key);
    mix(lists.decode.size());
  }
  return std::max<std::uint64_t>(key, 1);
}

TensorView BatchUploader::upload_rows(std::span<const std::int32_t> rows) {
  TensorView view = view_of<std::int32_t>(rows);
  if (backend_.reads_host_memory()) return view;
  grown(backend_, rows_, rows.size_bytes());
  backend_.upload(rows_.data(), rows.data(), rows.size_bytes());
  view.data = rows_.data();
  return view;
}

}  // namespace quire
