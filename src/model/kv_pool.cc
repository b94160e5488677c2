#include "model/kv_pool.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

std::int64_t elements_per_layer(const ModelConfig& config, int block_size) {
  return std::int64_t{2} * config.num_kv_heads * block_size * config.head_size;
}

// Every byte 0xff is a NaN in F16, BF16 and F32 alike.
void fill_with_nan(Backend& backend, const DeviceBuffer& memory) {
  const std::vector<unsigned char> ones(std::min<std::size_t>(memory.bytes(), std::size_t{1} << 20), 0xff);
  for (std::size_t done = 0; done < memory.bytes(); done += ones.size()) {
    backend.upload(static_cast<std::byte*>(memory.data()) + done, ones.data(), std::min(ones.size(), memory.bytes() - done));
  }
}

bool poison_wanted() {
  const char* value = std::getenv("QUIRE_KV_POISON");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

std::int64_t KvPool::bytes_per_block(const ModelConfig& config, DType dtype, int block_size) {
  const auto layers = static_cast<std::int64_t>(kv_group_layouts(config).front().layers.size());
  return row_bytes(dtype, layers * elements_per_layer(config, block_size));
}

std::int64_t KvPool::blocks_for_sequence(const ModelConfig& config, int block_size, std::int64_t num_tokens,
                                         int max_step_tokens) {
  std::int64_t blocks = 0;
  for (const KvGroupLayout& group : kv_group_layouts(config)) {
    std::int64_t kept = num_tokens;
    // A window's tokens and one step's chunk, neither of which need start at a block's edge.
    if (group.window > 0) kept = std::min(kept, std::int64_t{group.window} + max_step_tokens + block_size);
    blocks += ceil_div<std::int64_t>(kept, block_size);
  }
  return blocks;
}

KvPool::KvPool(Backend& backend, const ModelConfig& config, DType dtype, int block_size, std::int64_t num_blocks)
    : backend_(backend),
      groups_(kv_group_layouts(config)),
      layer_places_(static_cast<std::size_t>(config.num_layers)),
      dtype_(dtype),
      block_size_(block_size),
      num_kv_heads_(config.num_kv_heads),
      head_size_(config.head_size),
      num_blocks_(num_blocks),
      block_bytes_(bytes_per_block(config, dtype, block_size)) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    QUIRE_CHECK(groups_[g].layers.size() == groups_.front().layers.size());
    for (std::size_t i = 0; i < groups_[g].layers.size(); ++i) {
      layer_places_[static_cast<std::size_t>(groups_[g].layers[i])] = {static_cast<int>(g), static_cast<int>(i)};
    }
  }
  const std::optional<std::int64_t> bytes = checked_mul(num_blocks_, block_bytes_);
  if (!bytes)
    fail(ErrorCode::kOutOfMemory, "num_blocks {} of {} bytes each overflow the address space", num_blocks_, block_bytes_);
  memory_ = backend_.allocate(static_cast<std::size_t>(*bytes));
  if (poison_wanted()) fill_with_nan(backend_, memory_);
}

KvLayer KvPool::layer(int layer) const {
  const LayerPlace place = layer_places_[static_cast<std::size_t>(layer)];
  const std::int64_t half = std::int64_t{num_kv_heads_} * block_size_ * head_size_;
  std::byte* base = static_cast<std::byte*>(memory_.data()) + row_bytes(dtype_, place.index * 2 * half);
  return {.keys = base,
          .values = base + row_bytes(dtype_, half),
          .dtype = dtype_,
          .block_stride = static_cast<std::int64_t>(groups_.front().layers.size()) * 2 * half,
          .block_size = block_size_,
          .num_heads = num_kv_heads_,
          .head_size = head_size_};
}

void KvPool::copy_blocks(std::span<const BlockPair> pairs) {
  if (pairs.empty()) return;
  for (const BlockPair& pair : pairs) {
    QUIRE_CHECK_MSG(pair.from >= 0 && pair.from < num_blocks_ && pair.to >= 0 && pair.to < num_blocks_, "copy of block {} to {}",
                    pair.from, pair.to);
  }
  backend_.copy_blocks(
      {.pool = memory_.data(), .block_bytes = block_bytes_, .pairs = pairs.data(), .num_pairs = static_cast<int>(pairs.size())});
}

}  // namespace quire
