// Engine: one model on one device, serving any number of requests by continuous batching over a paged KV cache.
//
//   quire::Engine engine("model.gguf");
//   auto id = engine.submit({.prompt = engine.tokenizer().encode("Hello")});
//   while (engine.has_work())
//     for (const quire::TokenEvent& event : engine.step()) std::cout << event.text;
//
// Not thread-safe: one thread at a time (AsyncEngine gives it a thread of its own). It runs no thread while no step runs, save
// for its pool of CPU workers, which sleep.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/device.h"
#include "quire/request.h"
#include "quire/tokenizer.h"

namespace quire {

class Backend;

// kAuto: F16 on the CPU, BF16 on CUDA, where it is the type of activations too, F16 or BF16.
enum class KvType { kAuto, kF16, kBF16, kF32 };

struct EngineOptions {
  Device device = {};
  int num_threads = 0;  // CPU threads that compute; 0: the cores this process may use
  KvType kv_type = KvType::kAuto;
  int block_size = 16;              // tokens per KV block: 8, 16, 32, 64, 128 or 256
  std::int64_t num_blocks = 0;      // KV blocks, the reserved block 0 included; 0: as many as kv_cache_bytes hold
  std::int64_t kv_cache_bytes = 0;  // bytes for KV, ignored if num_blocks is given; 0: what one sequence of max_context needs, at
                                    // least 256 MiB, at most half of the free memory
  int max_context = 0;              // tokens of prompt and answer together; 0: the model's own
  int max_batched_tokens = 512;     // tokens computed in one step: larger prefills faster, smaller keeps other streams smoother
  int max_step_ms = 0;        // milliseconds that a step with running streams may take: prompts are cut to what fits, by what
                              // steps are seen to take; 0: no limit. Bounds the gap between a stream's tokens, not the answer
  int max_running = 256;      // sequences that share the steps; others wait
  bool prefix_cache = true;   // reuse KV blocks of equal prefixes
  bool deterministic = true;  // CUDA: the schedule never changes a bit of the answer, at some cost in speed; the CPU always
};

// A snapshot. Blocks: free + cached + held = total = EngineOptions::num_blocks - 1 (block 0 is reserved and in none of them).
struct EngineStats {
  int num_waiting = 0;  // sequences
  int num_running = 0;  // sequences
  std::int64_t total_blocks = 0;
  std::int64_t free_blocks = 0;          // never used or forgotten
  std::int64_t cached_blocks = 0;        // in no sequence, findable by content
  std::int64_t held_blocks = 0;          // in at least one sequence
  std::int64_t held_token_slots = 0;     // slots in held blocks
  std::int64_t written_token_slots = 0;  // of these, slots that hold a token: 1 - written/held is the waste
  int prefill_limit = 0;                 // prompt tokens that a step may have beside decodes now; 0: max_step_ms gives no limit
  std::int64_t num_steps = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t prefill_tokens = 0;    // computed, recomputation included
  std::int64_t generated_tokens = 0;  // sampled
  std::int64_t cached_tokens = 0;     // prompt tokens taken from the prefix cache
  std::int64_t kv_bytes = 0;          // memory of the KV pool
  std::int64_t weight_bytes = 0;
  std::string cpu_isa = {};  // of the kernels: "portable", "avx2", "avx512", "amx"; on CUDA "sm_90", ...
};

class Engine {
 public:
  // Loads a GGUF file (of a split model: any one of its files) or a directory with safetensors and config.json. Throws Error
  // naming the file, field or option.
  explicit Engine(const std::string& model_path, const EngineOptions& options = {});
  ~Engine();  // open requests get no more events
  // A moved-from engine may only be destroyed or assigned to.
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Checks and queues a request, all of it or nothing; computes nothing. Throws Error: kInvalidArgument naming the field;
  // kUnavailable after drain() or a failed step, with its reason; kOutOfMemory. What could never fit the KV pool or the context
  // is refused here.
  RequestId submit(Request request);

  // Throws what submit() would throw for `request` now, and changes nothing. May be called from any thread at any time.
  void check(const Request& request) const;

  // One forward pass over the current batch, and what came of it, in the order of the batch. Without work it returns at once.
  // A failure of one request is its last event. A failure of the step itself (device, memory, a fault of quire's own) throws an
  // Error, whatever it was, once; the next step() returns what had been made before and ends every open choice with
  // FinishReason::kError and the reason; all KV blocks are free, and submit() refuses from then on. (Should memory be short even
  // for these events, that step() throws too, and the one after it goes on.)
  std::vector<TokenEvent> step();

  // Ends a request; its last events come from the next step(). Needs no memory. False: unknown or finished.
  bool cancel(RequestId id);

  // Accepts no more requests; those accepted go on. has_work() turns false when they are done.
  void drain();

  bool has_work() const;
  EngineStats stats() const;

  const Tokenizer& tokenizer() const;
  int max_context() const;               // tokens
  int vocab_size() const;                // width of the logits; may exceed the tokenizer's
  const EngineOptions& options() const;  // with what was chosen in the place of each 0

 private:
  class Impl;
  friend Engine make_engine(const std::string& model_path, const EngineOptions& options, std::unique_ptr<Backend> backend);
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
