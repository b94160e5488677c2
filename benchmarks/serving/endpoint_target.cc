#include "benchmarks/serving/endpoint_target.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <boost/json.hpp>
#include <future>
#include <utility>

#include "benchmarks/serving/completion_stream.h"
#include "benchmarks/serving/printable.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxErrorBytes = 64 << 10;

// Twice the tokens asked for, and some: servers send a piece for a token, and a few without one.
std::size_t most_pieces(const PlannedRequest& planned) { return 16 + 2 * static_cast<std::size_t>(planned.output_tokens); }

// The answer to one request, from its head on.
struct Reply {
  explicit Reply(std::size_t most_pieces) : stream(most_pieces) {}

  CompletionStream stream;
  int status = 0;
  std::string content_type = {};
  std::string error_body = {};  // of an answer that is no stream

  bool is_stream() const { return status == 200 && content_type.starts_with("text/event-stream"); }

  bool take(std::string_view bytes, Clock::time_point now) {
    if (is_stream()) return stream.push(bytes, now);
    error_body += bytes.substr(0, kMaxErrorBytes - error_body.size());
    return error_body.size() < kMaxErrorBytes;
  }

  Answer finish(std::optional<Failure> failure) {
    if (failure || is_stream()) {
      Answer answer = stream.finish();
      if (failure) answer.failure = std::move(failure);
      return answer;
    }
    const auto message = error_message(error_body);
    const std::string said = printable(message ? *message : error_body, 500);
    if (status != 200 || message) {
      const std::string kind = status == 200 ? "server_error" : fmt::format("http_{}", status);
      return {.failure = Failure{kind, fmt::format("status {}: {}", status, said)}};
    }
    return {.failure = Failure{"bad_stream",
                               fmt::format("the answer is {} instead of text/event-stream: {}", printable(content_type), said)}};
  }
};

}  // namespace

EndpointTarget::EndpointTarget(const Url& url, const HttpTimeouts& timeouts, EndpointOptions options, PromptMaker prompts)
    : options_(std::move(options)), prompts_(std::move(prompts)), path_(url.path), client_(url, timeouts) {}

HttpRequest EndpointTarget::make_request(const PlannedRequest& planned) const {
  json::object body{{"model", options_.model_name},
                    {"temperature", options_.temperature},
                    {"stream", true},
                    {"stream_options", json::object{{"include_usage", true}}}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  const bool is_chat = options_.kind == EndpointKind::kChat;
  body[is_chat ? "max_completion_tokens" : "max_tokens"] = planned.output_tokens;
  if (is_chat) {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", prompts_.text(planned)}}};
  } else if (options_.sends_text) {
    body["prompt"] = prompts_.text(planned);
  } else {
    const std::vector<TokenId> tokens = prompts_.tokens(planned);
    body["prompt"] = json::array(tokens.begin(), tokens.end());
  }
  return {.target = path_ + (is_chat ? "/chat/completions" : "/completions"),
          .body = json::serialize(body),
          .bearer = options_.bearer};
}

Launch EndpointTarget::prepare(const PlannedRequest& planned) {
  auto request = std::make_shared<HttpRequest>(make_request(planned));
  return [this, request = std::move(request), most = most_pieces(planned)](AnswerSink sink) {
    auto reply = std::make_shared<Reply>(most);
    client_.send(
        std::move(*request),
        {.on_head =
             [reply](int status, std::string_view content_type) {
               reply->status = status;
               reply->content_type = content_type;
             },
         .on_body = [reply](std::string_view bytes, Clock::time_point now) { return reply->take(bytes, now); },
         .on_end = [reply, sink = std::move(sink)](std::optional<Failure> failure) { sink(reply->finish(std::move(failure))); }});
  };
}

std::string first_model_of(const Url& url, const HttpTimeouts& timeouts, const std::string& bearer) {
  std::promise<std::optional<Failure>> ended;
  int status = 0;
  std::string body;
  HttpClient client(url, timeouts);
  client.send({.is_post = false, .target = url.path + "/models", .bearer = bearer},
              {.on_head = [&](int s, std::string_view) { status = s; },
               .on_body =
                   [&](std::string_view bytes, Clock::time_point) {
                     body += bytes;
                     return body.size() < kMaxErrorBytes;
                   },
               .on_end = [&](std::optional<Failure> failure) { ended.set_value(std::move(failure)); }});
  const std::optional<Failure> failure = ended.get_future().get();
  const auto complain = [&](const std::string& why, std::string_view advice = "; --model-name gives it") {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("cannot learn the model's name from {}/models: {}{}", url.path, why, advice));
  };
  if (failure) complain(failure->message, "");
  if (status != 200) complain(fmt::format("status {}: {}", status, printable(body)));
  boost::system::error_code error;
  const json::value value = json::parse(body, error);
  const json::value* id = error ? nullptr : value.find_pointer("/data/0/id", error);
  if (id == nullptr || !id->is_string()) complain(fmt::format("it answers {}", printable(body)));
  return std::string(id->get_string());
}

}  // namespace quire::bench
