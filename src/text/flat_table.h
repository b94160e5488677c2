// FlatTable: 64-bit keys to small values, open addressing in one array. For the tokenizer's inner loops, which look up one
// pair of symbols per merge. Grows by insertion only; any number of threads may read at once.
// REQUIRES: the key 2^64 - 1 is not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire::text {

struct Nothing {};  // the value of a set's keys

// The key of two ids, or of two characters.
template <typename T>
std::uint64_t pair_key(T left, T right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

template <typename Value>
class FlatTable {
 public:
  explicit FlatTable(std::size_t expected = 0) { rehash(expected); }

  std::size_t size() const { return size_; }

  // Keeps the value of a key that is there already, and returns false.
  bool insert(std::uint64_t key, Value value) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(slots_.size());
    Slot& slot = slots_[index_of(key)];
    if (slot.key == key) return false;
    slot = {key, value};
    ++size_;
    return true;
  }

  const Value* find(std::uint64_t key) const {
    const Slot& slot = slots_[index_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    [[no_unique_address]] Value value{};
  };

  static std::uint64_t mix(std::uint64_t key) {
    key ^= key >> 32;
    key *= 0xD6E8FEB86659FD93u;  // odd, about half of its bits set, so that a carry reaches most of the upper half
    return key ^ (key >> 32);
  }

  // The slot that holds `key`, or the free one where it belongs.
  std::size_t index_of(std::uint64_t key) const {
    std::size_t i = mix(key) & (slots_.size() - 1);
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  void rehash(std::size_t expected) {
    std::size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(capacity));
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[index_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace quire::text
