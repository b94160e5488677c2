// TextIndex: from the texts of a vocabulary to their ids, open addressing in one array. A slot holds 32 bits of the text's hash
// and the id; the texts stay with their owner, who passes them to every call. What is not there is found out without reading a
// text, nearly always. Grows by insertion only; any number of threads may read at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {

class TextIndex {
 public:
  explicit TextIndex(std::size_t expected = 0) { rehash(expected); }

  // The id that was inserted with a text equal to `text`; -1: none. `texts[id]`: the texts of all ids inserted.
  template <typename Texts>
  std::int32_t find(const Texts& texts, std::string_view text) const {
    return slots_[index_of(texts, text, hash_of(text))].id;
  }

  // Enters `id` by its text. If that is there already it stays with its id, which is returned; -1: it was not.
  template <typename Texts>
  std::int32_t insert(const Texts& texts, std::int32_t id) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(slots_.size());
    const std::string_view text = texts[static_cast<std::size_t>(id)];
    const std::uint32_t hash = hash_of(text);
    Slot& slot = slots_[index_of(texts, text, hash)];
    if (slot.id >= 0) return slot.id;
    slot = {hash, id};
    ++size_;
    return -1;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;  // -1: free
  };

  static std::uint32_t hash_of(std::string_view text) {
    const std::uint64_t hash = std::hash<std::string_view>()(text);
    return static_cast<std::uint32_t>(hash ^ (hash >> 32));
  }

  // The slot that holds `text`, or the free one where it belongs.
  template <typename Texts>
  std::size_t index_of(const Texts& texts, std::string_view text, std::uint32_t hash) const {
    std::size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].hash == hash && std::string_view(texts[static_cast<std::size_t>(slots_[i].id)]) == text) break;
    }
    return i;
  }

  void rehash(std::size_t expected) {
    std::size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(capacity));
    for (const Slot& slot : old) {
      if (slot.id < 0) continue;
      std::size_t i = slot.hash & (capacity - 1);
      while (slots_[i].id >= 0) i = (i + 1) & (capacity - 1);
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace quire::text
