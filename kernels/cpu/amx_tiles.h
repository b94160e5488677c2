// AmxTiles: the tile registers of Intel AMX as far as matmul_amx.cc needs them: products of 16 rows of signed with 16 columns of
// unsigned bytes. Written in the machine's own words, not with the compiler's intrinsics: GCC 12 declares the operand of its
// _tile_loadconfig as eight bytes and drops the stores that fill the rest. Tests put a model of the registers in its place
// (tests/support/amx_model.h). Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

#ifdef QUIRE_AMX_MODEL
#include QUIRE_AMX_MODEL
#else

namespace quire::cpu::QUIRE_ISA {

class AmxTiles {
 public:
  static constexpr int kRows = 16;  // of a register; each has kRowBytes
  static constexpr int kRowBytes = 64;

  AmxTiles() = default;
  ~AmxTiles() {  // so that a switch of threads has nothing to save
    if (num_shapes_ > 0) asm volatile("tilerelease");
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // The shape of tile `tile` from the next configure() on.
  void set_shape(int tile, int rows, int row_bytes) {
    config_.row_bytes[tile] = static_cast<std::uint16_t>(row_bytes);
    config_.rows[tile] = static_cast<std::uint8_t>(rows);
  }
  // Takes the shapes, and zeroes all tiles.
  void configure() {
    asm volatile("ldtilecfg %0" : : "m"(config_));  // the whole of it is the operand
    ++num_shapes_;
  }

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  void load(const void* rows, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  template <int kTile>
  void store(void* rows, std::int64_t stride) const {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  // Words [i, j] of kSum += the sum over k of byte 4k + b, signed, of row i of kSigned times byte 4j + b, unsigned, of row k of
  // kUnsigned, b < 4.
  template <int kSum, int kSigned, int kUnsigned>
  void multiply() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kSigned), "i"(kUnsigned));
  }

 private:
  struct Config {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);

  alignas(64) Config config_;
  int num_shapes_ = 0;
};

}  // namespace quire::cpu::QUIRE_ISA

#endif
