// Accesses to memory as the emulator sees them: those that kernels name (load_global and its like, copies, ldmatrix) in every
// build, all others in the hooks build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simt/race_detector.h"
#include "simt/site.h"
#include "simt/traffic.h"

namespace simt {

enum class Access { kRead, kWrite };

// An access of the running thread that only the hooks build sees. Whatever is neither shared nor device memory is the thread's
// own. Does not throw: compilers take hooks for functions that cannot. What is found ends the block.
void observe(Access access, const void* address, std::size_t bytes, const void* code) noexcept;
// Called once by the hooks, if they are linked.
bool announce_hooks();

// The same for what kernels name: one lane's part of a request at `site`. Outside of the hooks build they count traffic only.
void observe_shared(RaceDetector::Access access, TrafficCounter::Kind kind, const void* address, std::size_t bytes, Site site);
void observe_global(TrafficCounter::Kind kind, const void* address, std::size_t bytes, Site site);

// For the living ReadWatches.
bool is_watching();
void note_watched_read(const void* address, std::size_t bytes);

}  // namespace simt
