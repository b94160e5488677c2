#include "kv/block_key.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace quire {
namespace {

// Everything that enters a key, as one comparable value.
struct Tuple {
  std::uint64_t model = 0;
  std::uint32_t group = 0;
  std::int32_t window = 0;
  std::uint64_t adapter = 0;
  std::string salt{};
  bool has_parent = false;
  std::pair<std::uint64_t, std::uint64_t> parent{};
  std::vector<std::pair<std::int64_t, std::uint8_t>> media{};  // position, every byte of the digest
  std::vector<std::int32_t> tokens{};

  bool operator==(const Tuple&) const = default;
};

std::vector<std::uint8_t> serialised(const Tuple& t) {
  const BlockIdentity identity{
      .model_id = t.model, .kv_group = t.group, .window = t.window, .adapter_generation = t.adapter, .salt = t.salt};
  const BlockKey parent{.low = t.parent.first, .high = t.parent.second};
  std::vector<MediaDigest> media;
  for (const auto& [position, byte] : t.media) {
    media.push_back({.position = position, .digest = {}});
    media.back().digest.fill(byte);
  }
  std::vector<std::uint8_t> out;
  serialise_block(identity, t.has_parent ? &parent : nullptr, media, t.tokens, out);
  return out;
}

// Few values per field, so that differing tuples often differ in one field only, or only in where a byte belongs.
rc::Gen<Tuple> tuples() {
  const auto small = rc::gen::inRange(0, 3);
  return rc::gen::map(
      rc::gen::tuple(small, small, small, small, rc::gen::container<std::string>(rc::gen::element('\0', '\1', 'S')), small,
                     rc::gen::container<std::vector<std::int32_t>>(small), rc::gen::inRange(0, 2)),
      [](const auto& t) {
        Tuple tuple{.model = static_cast<std::uint64_t>(std::get<0>(t)),
                    .group = static_cast<std::uint32_t>(std::get<1>(t)),
                    .window = std::get<2>(t),
                    .adapter = static_cast<std::uint64_t>(std::get<3>(t)),
                    .salt = std::get<4>(t),
                    .has_parent = std::get<5>(t) != 0,
                    .parent = {},
                    .media = {},
                    .tokens = std::get<6>(t)};
        if (std::get<5>(t) == 2) tuple.parent = {1, 0};
        if (std::get<7>(t) == 1) tuple.media.emplace_back(std::get<0>(t), static_cast<std::uint8_t>(std::get<1>(t)));
        return tuple;
      });
}

RC_GTEST_PROP(PeerBugs, B002_DifferentIdentitiesNeverSerialiseAlike, ()) {
  const Tuple a = *tuples();
  Tuple b = *tuples();
  switch (*rc::gen::inRange(0, 4)) {  // half of the pairs share all fields but one
    case 0:
      b = Tuple(a), b.salt += 'S';
      break;
    case 1:
      b = Tuple(a), std::swap(b.model, b.adapter);
      break;
    default:
      break;
  }
  RC_ASSERT((serialised(a) == serialised(b)) == (a == b));
}

TEST(PeerBugs, B002_SaltIsNotAnAdapter) {
  const auto with_adapter = serialised({.adapter = 'S', .tokens = {1, 2}});
  const auto with_salt = serialised({.salt = "S", .tokens = {1, 2}});
  const auto plain = serialised({.tokens = {1, 2}});
  EXPECT_NE(with_adapter, with_salt);
  EXPECT_NE(plain, with_salt);
  EXPECT_NE(plain, with_adapter);
}

// A salt is the one field a client writes freely: not even the bytes of a whole field make it look like one.
TEST(PeerBugs, B002_SaltCannotImitateAField) {
  const Tuple with_media{.salt = "S", .media = {{3, 7}}};
  const std::vector<std::uint8_t> bytes = serialised(with_media);
  const std::vector<std::uint8_t> plain = serialised({.salt = "S"});
  const std::size_t num_shared = plain.size() - 9;  // without the empty token field
  const Tuple imitation{.salt = "S" + std::string(bytes.begin() + static_cast<std::ptrdiff_t>(num_shared), bytes.end() - 9)};
  EXPECT_NE(serialised(imitation), bytes);
}

TEST(PeerBugs, B001_AdapterGenerationSeparatesLoadsOfOneName) {
  std::vector<std::uint8_t> scratch;
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  const BlockKey first = block_key({.adapter_generation = 1}, nullptr, {}, tokens, scratch);
  const BlockKey second = block_key({.adapter_generation = 2}, nullptr, {}, tokens, scratch);
  EXPECT_NE(first, second);
}

TEST(PeerBugs, B007_MediaDigestsDoNotCollide) {
  std::mt19937_64 random(7);
  std::vector<std::uint8_t> scratch;
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    MediaDigest media;
    for (auto& byte : media.digest) byte = static_cast<std::uint8_t>(random());
    const BlockKey key = block_key({}, nullptr, {&media, 1}, tokens, scratch);
    keys.emplace(key.high, key.low);
  }
  EXPECT_EQ(keys.size(), kCount);
}

TEST(BlockKeyChain, GrowsByFullBlocksAndCoversThePrefix) {
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6, 7};
  BlockKeyChain chain({.model_id = 9}, 2);
  chain.extend(std::span(tokens).first(3));
  EXPECT_EQ(chain.size(), 1);
  chain.extend(tokens);
  ASSERT_EQ(chain.size(), 3);
  EXPECT_EQ(chain.parent(2), chain.key(1));

  std::vector<std::uint8_t> scratch;
  const BlockKey root = block_key({.model_id = 9}, nullptr, {}, {}, scratch);
  EXPECT_EQ(chain.parent(0), root);
  EXPECT_EQ(chain.key(0), block_key({.model_id = 9}, &root, {}, std::span(tokens).first(2), scratch));

  // The same second block behind another first one is another block.
  const std::vector<std::int32_t> other{1, 9, 3, 4};
  BlockKeyChain other_chain({.model_id = 9}, 2);
  other_chain.extend(other);
  EXPECT_NE(other_chain.key(1), chain.key(1));
}

// The keys are stored on disk and sent to other hosts: they may not change by accident.
TEST(BlockKeyChain, KeysAreStable) {
  std::vector<std::uint8_t> scratch;
  const std::vector<std::int32_t> tokens{1, 2};
  serialise_block({.salt = "ab"}, nullptr, {}, tokens, scratch);
  // version 9 + 4, parent 9, model 9 + 8, group 9 + 4, window 9 + 4, adapter 9 + 8, salt 9 + 2, tokens 9 + 8
  EXPECT_EQ(scratch.size(), 8u * 9 + 4 + 8 + 4 + 4 + 8 + 2 + 8);
  EXPECT_EQ(scratch[0], 1);  // tag
  EXPECT_EQ(scratch[9], 1);  // version
  EXPECT_EQ(scratch.back(), 0);
  const BlockKey stored = block_key({.salt = "ab"}, nullptr, {}, tokens, scratch);
  EXPECT_EQ(stored.high, 13000067389711784451ULL);
  EXPECT_EQ(stored.low, 18039762108425434750ULL);
}

}  // namespace
}  // namespace quire
