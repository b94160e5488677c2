#include "benchmarks/serving/engine_target.h"

#include <quire/error.h>

#include <limits>
#include <utility>

namespace quire::bench {
namespace {

std::optional<Failure> failure_of(const TokenEvent& event) {
  switch (event.finish_reason) {
    case FinishReason::kError:
      return Failure{"engine_error", event.error};
    case FinishReason::kDeadline:
      return Failure{"timeout", "the request took longer than allowed"};
    case FinishReason::kCancelled:
      return Failure{"cancelled", "the run was given up"};
    default:
      return std::nullopt;
  }
}

}  // namespace

EngineTarget::EngineTarget(Engine engine, const EngineTargetOptions& options, PromptMaker prompts)
    : options_(options), prompts_(std::move(prompts)) {
  // An open loop is not held back.
  engine_ =
      std::make_unique<AsyncEngine>(std::move(engine), AsyncEngineOptions{.max_queued = std::numeric_limits<std::size_t>::max()});
}

Launch EngineTarget::prepare(const PlannedRequest& planned) {
  auto request = std::make_shared<Request>();
  request->sampling.temperature = options_.temperature;
  request->sampling.max_tokens = planned.output_tokens;
  request->sampling.ignore_eos = options_.ignore_eos;
  request->timeout_us = std::chrono::microseconds(options_.timeout).count();
  if (options_.sends_text) {
    return [this, request, text = prompts_.text(planned)](const AnswerSink& sink) {
      if (engine_ != nullptr) request->prompt = engine_->tokenizer().encode(text);
      submit(*request, sink);
    };
  }
  request->prompt = prompts_.tokens(planned);
  return [this, request](const AnswerSink& sink) { submit(*request, sink); };
}

void EngineTarget::submit(Request& request, const AnswerSink& sink) {
  if (engine_ == nullptr) return sink({.failure = Failure{"cancelled", "the run was given up"}});
  try {
    engine_->submit(std::move(request), [sink, answer = Answer()](const TokenEvent& event) mutable {
      if (event.token >= 0) answer.pieces.push_back(Clock::now());
      if (event.finish_reason == FinishReason::kNone) return;
      answer.prompt_tokens = event.usage.prompt_tokens;
      answer.output_tokens = event.usage.completion_tokens;
      answer.cached_tokens = event.usage.cached_tokens;
      answer.failure = failure_of(event);
      sink(std::move(answer));
    });
  } catch (const Error& error) {
    sink({.failure = Failure{"refused", error.what()}});
  }
}

}  // namespace quire::bench
