// EndpointTarget: an OpenAI-compatible server by its address, asked to stream. Prompts are token ids, or text of as many tokens.
#pragma once

#include <memory>
#include <string>

#include "benchmarks/serving/http_client.h"
#include "benchmarks/serving/prompt_maker.h"

namespace quire::bench {

enum class EndpointKind { kCompletions, kChat };

struct EndpointOptions {
  EndpointKind kind = EndpointKind::kCompletions;
  bool sends_text = false;      // chat always does
  bool ignore_eos = true;       // an extension that llama-server, vLLM and SGLang know
  std::string model_name = {};  // of the field "model"
  double temperature = 0;
  std::string bearer = {};
};

class EndpointTarget : public Target {
 public:
  EndpointTarget(const Url& url, const HttpTimeouts& timeouts, EndpointOptions options, PromptMaker prompts);

  Launch prepare(const PlannedRequest& request) override;
  void cancel_all() override { client_.cancel_all(); }

 private:
  HttpRequest make_request(const PlannedRequest& planned) const;

  EndpointOptions options_;
  PromptMaker prompts_;
  std::string path_;
  HttpClient client_;
};

// The first model that the server lists at /models. Throws Error(kUnavailable) if it cannot be had.
std::string first_model_of(const Url& url, const HttpTimeouts& timeouts, const std::string& bearer);

}  // namespace quire::bench
