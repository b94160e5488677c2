// Mix: one way to schedule the same requests, for the tests that it leaves no trace.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/engine/outcome.h"

namespace quire::test {

struct Mix {
  EngineOptions options;
  RunPlan plan;
  std::string isa;
  int placement = 0;  // seed of the order in which never-used blocks are handed out; 0: ascending

  std::string describe() const {
    return isa + ", block " + std::to_string(options.block_size) + ", budget " + std::to_string(options.max_batched_tokens) +
           ", running " + std::to_string(options.max_running) + ", blocks " + std::to_string(options.num_blocks) + ", step ms " +
           std::to_string(options.max_step_ms) + (options.prefix_cache ? ", prefix cache" : ", no prefix cache") + ", threads " +
           std::to_string(options.num_threads) + ", per step " + std::to_string(plan.per_step) +
           (plan.cancel_neighbours ? ", cancelled neighbours" : "") + ", placement " + std::to_string(placement);
  }
};

// The instruction sets of this machine, the portable one first, the best one last.
inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const char* name : {"portable", "avx2", "avx512", "amx"}) {
    if (cpu::find_kernels(name) != nullptr) names.emplace_back(name);
  }
  return names;
}

inline void use_isa(const std::string& isa) { setenv("QUIRE_CPU_ISA", isa.c_str(), 1); }

// Of the engines made from now on.
inline void use_placement(int seed) {
  if (seed == 0) {
    unsetenv("QUIRE_KV_PERMUTE");
  } else {
    setenv("QUIRE_KV_PERMUTE", std::to_string(seed).c_str(), 1);
  }
}

}  // namespace quire::test
