#include "scheduler/sequence.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/check.h"

namespace quire {

namespace {

constexpr BlockId kNotLookedUp = -1;

}  // namespace

Sequence::Sequence(const Origin& origin, std::shared_ptr<Siblings> siblings, std::span<const KvGroupSpec> groups,
                   BlockAllocator& allocator)
    : id_(origin.id),
      choice_(origin.choice),
      max_total_tokens_(origin.max_total_tokens),
      siblings_(std::move(siblings)),
      tokens_(siblings_->spec.prompt) {
  groups_.reserve(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const BlockIdentity identity{.model_id = origin.model_id,
                                 .kv_group = static_cast<std::uint32_t>(g),
                                 .window = groups[g].window,
                                 .salt = siblings_->spec.salt};
    groups_.push_back({PageTable(allocator, groups[g]), BlockKeyChain(identity, allocator.block_size())});
  }
  siblings_->members.push_back(this);
}

Sequence::~Sequence() { std::erase(siblings_->members, this); }

bool Sequence::runs_before(const Sequence* a, const Sequence* b) {
  const int priority_a = a->spec().priority;
  const int priority_b = b->spec().priority;
  return priority_a != priority_b ? priority_a < priority_b : a->id_ < b->id_;
}

// Full groups need every block of the prefix, so the shortest run of hits from the front bounds it. Sliding groups need only the
// blocks that the next position sees, so the bound then moves down until each finds those.
void Sequence::match_prefix(const BlockAllocator& allocator, PrefixMatch& match) {
  const int block_size = allocator.block_size();
  match.blocks.resize(groups_.size());
  int num_blocks = (num_tokens() - 1) / block_size;
  const auto look_up = [&](const Group& group, int i) {
    const auto block_tokens = tokens().subspan(static_cast<std::size_t>(i) * static_cast<std::size_t>(block_size),
                                               static_cast<std::size_t>(block_size));
    return allocator.find(group.keys.key(i), group.keys.parent(i), block_tokens);
  };
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].keys.extend(tokens_);
    auto& hits = match.blocks[g];
    hits.clear();
    if (groups_[g].table.window() > 0) continue;
    for (int i = 0; i < num_blocks; ++i) {
      const BlockId id = look_up(groups_[g], i);
      if (id == kNullBlock) break;
      hits.push_back(id);
    }
    num_blocks = static_cast<int>(hits.size());
  }
  for (bool is_settled = false; !is_settled;) {
    is_settled = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const int window = groups_[g].table.window();
      if (window == 0) continue;
      auto& hits = match.blocks[g];
      hits.resize(static_cast<std::size_t>(num_blocks), kNotLookedUp);
      const int first = PageTable::first_block_seen(num_blocks * block_size, window, block_size);
      for (int i = num_blocks - 1; i >= first; --i) {
        BlockId& hit = hits[static_cast<std::size_t>(i)];
        if (hit == kNotLookedUp) hit = look_up(groups_[g], i);
        if (hit == kNullBlock) {
          num_blocks = i;
          is_settled = false;
          break;
        }
      }
    }
  }
  match.num_tokens = num_blocks * block_size;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& hits = match.blocks[g];
    hits.resize(static_cast<std::size_t>(num_blocks));
    const int first = PageTable::first_block_seen(match.num_tokens, groups_[g].table.window(), block_size);
    std::fill_n(hits.begin(), std::min(first, num_blocks), kNullBlock);
  }
}

int Sequence::num_blocks_to_grow(int num_tokens) const {
  int count = 0;
  for (const Group& group : groups_) count += group.table.num_blocks_to_grow(num_tokens);
  return count;
}

bool Sequence::grow(int num_tokens) {
  for (Group& group : groups_) {
    if (group.table.grow(num_tokens)) continue;
    // All tables have the same number of entries, so those before this one go back to its size.
    const int num_entries = group.table.num_blocks();
    for (Group& grown : groups_) grown.table.truncate_blocks(num_entries);
    return false;
  }
  return true;
}

bool Sequence::admit(const PrefixMatch& match, int num_tokens) {
  QUIRE_CHECK(state_ == SequenceState::kWaiting && num_tokens > match.num_tokens && num_tokens <= this->num_tokens());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (match.num_tokens > 0) groups_[g].table.adopt(match.blocks[g]);
  }
  if (!grow(num_tokens)) {
    clear_tables();
    return false;
  }
  num_computed_ = match.num_tokens;
  if (!was_admitted()) cached_tokens_ = match.num_tokens;
  state_ = SequenceState::kRunning;
  return true;
}

bool Sequence::can_fork(const Sequence& source) const {
  if (&source == this || num_generated_tokens() > 0 || wants_prompt_logprobs()) return false;
  if (source.state_ != SequenceState::kRunning || source.num_computed_ < num_prompt_tokens()) return false;
  return std::all_of(source.groups_.begin(), source.groups_.end(),
                     [&](const Group& group) { return group.table.can_share(num_prompt_tokens() - 1); });
}

bool Sequence::fork(const Sequence& source, std::vector<BlockCopy>& copies) {
  QUIRE_CHECK(state_ == SequenceState::kWaiting && can_fork(source));
  const int num_shared = num_prompt_tokens() - 1;
  const std::size_t old_copies = copies.size();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    BlockId copied_from = kNullBlock;
    if (!groups_[g].table.share(source.groups_[g].table, num_shared, &copied_from)) {
      copies.resize(old_copies);
      clear_tables();
      return false;
    }
    if (copied_from != kNullBlock) copies.push_back({.from = copied_from, .to = groups_[g].table.blocks().back()});
  }
  num_computed_ = num_shared;
  if (!was_admitted()) cached_tokens_ = source.cached_tokens_;
  state_ = SequenceState::kRunning;
  return true;
}

const Sequence* Sequence::fork_source() const {
  for (const Sequence* sibling : siblings_->members) {
    if (can_fork(*sibling)) return sibling;
  }
  return nullptr;
}

bool Sequence::waits_for_sibling() const {
  if (siblings_->members.size() == 1 || num_generated_tokens() > 0 || wants_prompt_logprobs()) return false;
  if (fork_source() != nullptr) return false;  // first, for with many choices it is soon found
  return std::any_of(siblings_->members.begin(), siblings_->members.end(), [&](const Sequence* sibling) {
    return sibling->state_ == SequenceState::kRunning && sibling->num_computed_ < num_prompt_tokens();
  });
}

void Sequence::preempt() {
  QUIRE_CHECK(state_ == SequenceState::kRunning && !in_flight_);
  clear_tables();
  state_ = SequenceState::kWaiting;
}

void Sequence::advance(int num_tokens, bool publish) {
  num_computed_ += num_tokens;
  QUIRE_CHECK(num_computed_ <= this->num_tokens());
  num_scored_ = std::max(num_scored_, num_computed_);
  for (Group& group : groups_) {
    if (publish) {
      const auto computed = tokens().first(static_cast<std::size_t>(num_computed_));
      group.keys.extend(computed);
      group.table.publish(group.keys, computed, num_computed_);
    }
    group.table.release_out_of_window(num_computed_);
  }
}

void Sequence::append(TokenId token) {
  tokens_.push_back(token);
  const auto& stops = spec().stop_token_ids;
  if (std::binary_search(stops.begin(), stops.end(), token)) {
    finish_reason_ = FinishReason::kStop;
  } else if (num_tokens() >= max_total_tokens_) {
    finish_reason_ = FinishReason::kLength;
  }
}

void Sequence::clear_tables() {
  for (Group& group : groups_) group.table.clear();
  num_computed_ = 0;
}

}  // namespace quire
