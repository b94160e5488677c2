// The tile registers of Intel AMX as plain memory, for machines without them: what kernels/cpu/amx_tiles.h declares, with the
// machine's rules held. Breaking one (a shape beyond the palette, shapes that do not fit each other, a tile that was not
// configured) ends the test, as it would end the process on the machine. For kernel sources of the tests alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

class AmxTiles {
 public:
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = 64;

  [[gnu::always_inline]] AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  [[gnu::always_inline]] void set_shape(int tile, int rows, int row_bytes) { next_[tile] = {rows, row_bytes}; }

  [[gnu::always_inline]] void configure() {
    for (int tile = 0; tile < kTiles; ++tile) {
      const Shape& shape = next_[tile];
      require((shape.rows == 0) == (shape.row_bytes == 0));
      require(0 <= shape.rows && shape.rows <= kRows && 0 <= shape.row_bytes && shape.row_bytes <= kRowBytes);
      now_[tile] = shape;
      clear(tile);
    }
  }

  template <int kTile>
  [[gnu::always_inline]] void zero() {
    use(kTile);
    clear(kTile);
  }

  template <int kTile>
  [[gnu::always_inline]] void load(const void* rows, std::int64_t stride) {
    use(kTile);
    clear(kTile);
    for (int i = 0; i < now_[kTile].rows; ++i) {
      __builtin_memcpy(data_[kTile][i], static_cast<const std::uint8_t*>(rows) + i * stride,
                       static_cast<std::size_t>(now_[kTile].row_bytes));
    }
  }

  template <int kTile>
  [[gnu::always_inline]] void store(void* rows, std::int64_t stride) const {
    use(kTile);
    for (int i = 0; i < now_[kTile].rows; ++i) {
      __builtin_memcpy(static_cast<std::uint8_t*>(rows) + i * stride, data_[kTile][i],
                       static_cast<std::size_t>(now_[kTile].row_bytes));
    }
  }

  template <int kSum, int kSigned, int kUnsigned>
  [[gnu::always_inline]] void multiply() {
    static_assert(kSum != kSigned && kSum != kUnsigned && kSigned != kUnsigned);
    use(kSum), use(kSigned), use(kUnsigned);
    require(now_[kSum].rows == now_[kSigned].rows && now_[kSum].row_bytes == now_[kUnsigned].row_bytes);
    require(now_[kSigned].row_bytes == 4 * now_[kUnsigned].rows && now_[kSum].row_bytes % 4 == 0);
    for (int i = 0; i < now_[kSum].rows; ++i) {
      for (int j = 0; j < now_[kSum].row_bytes / 4; ++j) {
        std::int32_t sum;
        __builtin_memcpy(&sum, data_[kSum][i] + 4 * j, 4);
        for (int k = 0; k < now_[kUnsigned].rows; ++k) {
          for (int b = 0; b < 4; ++b) {
            sum += static_cast<std::int8_t>(data_[kSigned][i][4 * k + b]) * static_cast<int>(data_[kUnsigned][k][4 * j + b]);
          }
        }
        __builtin_memcpy(data_[kSum][i] + 4 * j, &sum, 4);
      }
    }
  }

 private:
  static constexpr int kTiles = 8;
  struct Shape {
    int rows = 0, row_bytes = 0;
  };

  [[gnu::always_inline]] static void require(bool condition) {
    if (!condition) __builtin_trap();
  }
  [[gnu::always_inline]] void use(int tile) const { require(now_[tile].rows > 0); }
  [[gnu::always_inline]] void clear(int tile) { __builtin_memset(data_[tile], 0, sizeof data_[tile]); }

  Shape next_[kTiles], now_[kTiles];
  std::uint8_t data_[kTiles][kRows][kRowBytes];
};

}  // namespace quire::cpu::QUIRE_ISA
