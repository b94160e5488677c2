// Engine::Impl: the bridge between the two towers. Owns one of everything; see the table in engine.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "engine/batch_builder.h"
#include "engine/request_record.h"
#include "engine/upload.h"
#include "model/decoder.h"
#include "model/kv_pool.h"
#include "model/weights.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_pacer.h"

namespace quire {

class Engine::Impl {
 public:
  // Without a backend: that of options.device.
  Impl(const std::string& model_path, const EngineOptions& options, std::unique_ptr<Backend> backend = nullptr);

  RequestId submit(Request request);
  void check(const Request& request) const;  // reads what never changes, and atomics
  std::vector<TokenEvent> step();
  bool cancel(RequestId id);
  void drain() { draining_ = true; }
  bool has_work() const { return !records_.empty() || !events_.empty(); }
  EngineStats stats() const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  int vocab_size() const { return model_.config.vocab_size; }
  const EngineOptions& options() const { return options_; }

 private:
  struct ChoiceRef {
    RequestRecord* record = nullptr;
    int choice = 0;
  };

  // With a tokenizer that is being loaded elsewhere.
  Impl(std::unique_ptr<Backend> backend, std::future<Tokenizer> tokenizer, const std::string& model_path,
       const EngineOptions& options);

  // Ids below can be sampled: logits may be padded beyond the vocabulary.
  int num_samplable() const { return std::min(tokenizer_.vocab_size(), model_.config.vocab_size); }
  SequenceSpec sequence_spec(const Request& request) const;
  void refuse_within_step(const char* member) const;
  void advance();
  void compute(const StepPlan& plan);
  void pace(const StepPlan& plan, std::int64_t elapsed_us);
  void sample(const StepPlan& plan, const TensorView& rows);
  SampleRow sample_row(const Sequence& sequence, const LogitRow& row);
  void take_result(const StepPlan& plan, std::size_t index);
  void take_prompt_result(const ChoiceRef& ref, const Sequence& sequence, int position, const SampleResult& result);
  void deliver();
  void give_up(const Error& error);
  void end_all_with_error();

  // In the order of construction: each may refer to those before.
  std::unique_ptr<Backend> backend_;
  LoadedModel model_;
  Tokenizer tokenizer_;
  std::vector<TokenId> end_ids_;  // that end a generation, of tokenizer and model configuration; ascending
  EngineOptions options_;         // with defaults worked in
  BatchUploader uploader_;        // before the pool: what steps need comes first
  KvPool pool_;
  Decoder decoder_;
  Scheduler scheduler_;
  std::optional<StepPacer> pacer_;  // for max_step_ms

  std::unordered_map<RequestId, std::unique_ptr<RequestRecord>> records_;  // open requests
  std::unordered_map<SequenceId, ChoiceRef> choice_of_;                    // their unfinished choices
  RequestId next_request_id_ = 1;
  std::mt19937_64 seed_source_{std::random_device{}()};  // seeds of requests that bring none
  std::atomic<bool> draining_ = false;
  bool in_step_ = false;
  bool has_waited_ = true;  // the last step ended when the device was done
  std::atomic<bool> failed_ = false;
  std::optional<Error> failure_;  // why; never changes once failed_ is set

  std::vector<TokenEvent> events_;  // of the step under way; after a failed one they wait for the next

  // Of one step, kept to reuse their memory.
  HostBatch host_batch_;
  std::vector<BlockPair> block_pairs_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;  // one per logit row
  std::vector<TokenId> sampled_;       // one per entry that samples; -1: failed
  std::vector<SequenceEvent> sequence_events_;
};

// An engine on a backend of one's own: how tests run it on a device that create_backend() does not know.
Engine make_engine(const std::string& model_path, const EngineOptions& options, std::unique_ptr<Backend> backend);

}  // namespace quire
