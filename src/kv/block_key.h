// The identity of a KV block: a 128-bit key over everything that decides the bytes of its rows. One function makes it for every
// tier (device, host, disk, remote); two blocks may share memory only if their keys, parents and tokens are equal.
// Keys form a chain: a block's key covers its parent's key, hence the whole prefix. Pure arithmetic; owns no block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quire {

struct BlockKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

// An image or sound whose embeddings stand in for tokens of a block.
struct MediaDigest {
  std::int64_t position = 0;              // of its first embedding in the sequence
  std::array<std::uint8_t, 32> digest{};  // of its content, whole: a shortened digest collides
  friend bool operator==(const MediaDigest&, const MediaDigest&) = default;
};

// What every block of one sequence in one KV group has in common. Held by reference to the salt: REQUIRES: `salt` outlives it.
struct BlockIdentity {
  std::uint64_t model_id = 0;            // differs between weights, KV dtypes and layouts
  std::uint32_t kv_group = 0;            // groups of one model hold rows of different layers
  std::int32_t window = 0;               // of the group; 0: full
  std::uint64_t adapter_generation = 0;  // of the load, never of the name; 0: no adapter
  std::string_view salt{};               // of the request; equal salts may share
};

// The exact bytes that are hashed: each field as tag, length and little-endian content, so that different arguments never
// serialise alike. `parent` null: the root. Clears `out` first.
void serialise_block(const BlockIdentity& identity, const BlockKey* parent, std::span<const MediaDigest> media,
                     std::span<const std::int32_t> tokens, std::vector<std::uint8_t>& out);

// XXH3-128 of serialise_block. `scratch` is the buffer it serialises into.
BlockKey block_key(const BlockIdentity& identity, const BlockKey* parent, std::span<const MediaDigest> media,
                   std::span<const std::int32_t> tokens, std::vector<std::uint8_t>& scratch);

// The keys of the full blocks of one growing token list, each computed once.
class BlockKeyChain {
 public:
  BlockKeyChain(const BlockIdentity& identity, int block_size);

  // Computes the keys still missing for the full blocks of `tokens`. REQUIRES: `tokens` only ever grows.
  void extend(std::span<const std::int32_t> tokens);

  int size() const { return static_cast<int>(keys_.size()) - 1; }  // blocks with a key
  const BlockKey& key(int block_index) const { return keys_[static_cast<std::size_t>(block_index) + 1]; }
  const BlockKey& parent(int block_index) const { return keys_[static_cast<std::size_t>(block_index)]; }

 private:
  BlockIdentity identity_;
  int block_size_;
  std::vector<BlockKey> keys_;  // [0]: the root, which stands for the identity alone
  std::vector<std::uint8_t> scratch_;
};

}  // namespace quire
