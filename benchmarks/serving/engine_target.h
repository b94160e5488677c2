// EngineTarget: the library in this process, an AsyncEngine.
#pragma once

#include <quire/async_engine.h>

#include <memory>

#include "benchmarks/serving/prompt_maker.h"
#include "benchmarks/serving/target.h"

namespace quire::bench {

struct EngineTargetOptions {
  float temperature = 0;
  bool ignore_eos = true;
  std::chrono::milliseconds timeout{600'000};  // of a request
  bool sends_text = false;                     // encodes a text, as a server would, within the measured time
};

class EngineTarget : public Target {
 public:
  EngineTarget(Engine engine, const EngineTargetOptions& options, PromptMaker prompts);

  Launch prepare(const PlannedRequest& request) override;
  void cancel_all() override { engine_.reset(); }

  EngineStats stats() const { return engine_->stats(); }  // REQUIRES: not cancelled

 private:
  void submit(Request& request, const AnswerSink& sink);

  EngineTargetOptions options_;
  PromptMaker prompts_;
  std::unique_ptr<AsyncEngine> engine_;  // null once cancelled
};

}  // namespace quire::bench
