// The instructions behind platform.h and intrinsics.h, as functions that are not templates. All run in the running thread of the
// current block and throw Error for a wrong use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simt/site.h"

namespace simt {

// ---- block.cc
void sync_threads(Site site);
unsigned char* dynamic_shared();
void* shared_array(const void* key, std::size_t bytes, const char* name);

// ---- collectives.cc
enum class Shuffle { kIndex, kUp, kDown, kXor };
// Exchanges `bytes` bytes (4 or 8) within the lanes of `mask`; in place.
void shuffle(Shuffle kind, std::uint32_t mask, void* value, std::size_t bytes, int lane_operand, int width, Site site);
std::uint32_t ballot(std::uint32_t mask, bool predicate, const char* name, Site site);
void sync_warp(std::uint32_t mask, Site site);
// Puts in 4 bytes and gets those of all lanes; of lanes outside the mask they are undefined.
void gather(std::uint32_t mask, std::uint32_t value, std::uint32_t (&values)[32], const char* name, Site site);

// ---- async_copy.cc
void issue_copy(void* shared, const void* global, int num_bytes, Site site);
void commit_copies();
void wait_for_copies(int pending);

// ---- matrix.cc
enum class MatrixType { kHalf, kBFloat16 };
void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed, Site site);
void multiply_matrices(MatrixType type, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                       Site site);

// ---- memory.cc: accesses that kernels name, one lane's part of a request of its warp each
enum class Space { kGlobal, kShared };
void load(Space space, const void* address, void* value, std::size_t bytes, Site site);
void store(Space space, void* address, const void* value, std::size_t bytes, Site site);
// The two halves of an atomic update; no thread runs between them.
void atomic_load(const void* address, void* value, std::size_t bytes, Site site);
void atomic_store(void* address, const void* value, std::size_t bytes);

}  // namespace simt
