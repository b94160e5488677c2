#include "kv/block_key.h"

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/check.h"

namespace quire {

namespace {

static_assert(std::endian::native == std::endian::little, "keys are stored and sent in little-endian order");

constexpr std::uint32_t kFormatVersion = 1;  // of the serialisation; other versions share nothing

enum class Tag : std::uint8_t { kVersion = 1, kParent, kModel, kGroup, kWindow, kAdapter, kSalt, kMedia, kTokens };

void put_bytes(std::vector<std::uint8_t>& out, const void* bytes, std::size_t size) {
  if (size == 0) return;
  const std::size_t end = out.size();
  out.resize(end + size);
  std::memcpy(out.data() + end, bytes, size);
}

void put_field(std::vector<std::uint8_t>& out, Tag tag, const void* bytes, std::size_t size) {
  const std::uint64_t length = size;
  out.push_back(static_cast<std::uint8_t>(tag));
  put_bytes(out, &length, sizeof length);
  put_bytes(out, bytes, size);
}

template <typename T>
void put_value(std::vector<std::uint8_t>& out, Tag tag, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  put_field(out, tag, &value, sizeof value);
}

}  // namespace

void serialise_block(const BlockIdentity& identity, const BlockKey* parent, std::span<const MediaDigest> media,
                     std::span<const std::int32_t> tokens, std::vector<std::uint8_t>& out) {
  out.clear();
  put_value(out, Tag::kVersion, kFormatVersion);
  put_field(out, Tag::kParent, parent, parent == nullptr ? 0 : sizeof *parent);
  put_value(out, Tag::kModel, identity.model_id);
  put_value(out, Tag::kGroup, identity.kv_group);
  put_value(out, Tag::kWindow, identity.window);
  put_value(out, Tag::kAdapter, identity.adapter_generation);
  put_field(out, Tag::kSalt, identity.salt.data(), identity.salt.size());
  for (const MediaDigest& item : media) put_value(out, Tag::kMedia, item);
  put_field(out, Tag::kTokens, tokens.data(), tokens.size_bytes());
}

BlockKey block_key(const BlockIdentity& identity, const BlockKey* parent, std::span<const MediaDigest> media,
                   std::span<const std::int32_t> tokens, std::vector<std::uint8_t>& scratch) {
  serialise_block(identity, parent, media, tokens, scratch);
  const XXH128_hash_t hash = XXH3_128bits(scratch.data(), scratch.size());
  return {.low = hash.low64, .high = hash.high64};
}

BlockKeyChain::BlockKeyChain(const BlockIdentity& identity, int block_size) : identity_(identity), block_size_(block_size) {
  QUIRE_CHECK(block_size >= 1);
  keys_.push_back(block_key(identity_, nullptr, {}, {}, scratch_));
}

void BlockKeyChain::extend(std::span<const std::int32_t> tokens) {
  const auto block_size = static_cast<std::size_t>(block_size_);
  const std::size_t num_full = tokens.size() / block_size;
  for (std::size_t i = keys_.size() - 1; i < num_full; ++i) {
    const BlockKey parent = keys_.back();
    keys_.push_back(block_key(identity_, &parent, {}, tokens.subspan(i * block_size, block_size), scratch_));
  }
}

}  // namespace quire
