#include "benchmarks/serving/completion_stream.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <boost/json.hpp>
#include <utility>

#include "benchmarks/serving/printable.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

const json::value* member(const json::value& value, std::string_view key) {
  return value.is_object() ? value.get_object().if_contains(key) : nullptr;
}

bool has_text(const json::value& value, std::string_view key) {
  const json::value* text = member(value, key);
  return text != nullptr && text->is_string() && !text->get_string().empty();
}

bool is_set(const json::value& value, std::string_view key) {
  const json::value* field = member(value, key);
  return field != nullptr && !field->is_null();
}

// Of a chunk's choice, see the header.
bool is_piece(const json::value& choice) {
  const json::value* delta = member(choice, "delta");
  const json::value& body = delta != nullptr ? *delta : choice;
  for (const char* key : {"text", "content", "reasoning_content", "reasoning"})
    if (has_text(body, key)) return true;
  return !is_set(choice, "finish_reason") && !is_set(body, "role");
}

std::optional<int> count(const json::value& usage, std::string_view key) {
  const json::value* value = member(usage, key);
  if (value == nullptr || !value->is_int64() || value->get_int64() < 0 || value->get_int64() > 1 << 30) return std::nullopt;
  return static_cast<int>(value->get_int64());
}

std::optional<std::string> message_of(const json::value& body) {
  const json::value* error = member(body, "error");
  if (error == nullptr || error->is_null()) return std::nullopt;
  const json::value* message = member(*error, "message");
  if (message == nullptr) message = error;
  return message->is_string() ? std::string(message->get_string()) : json::serialize(*message);
}

json::value parse(std::string_view text, boost::system::error_code& error) {
  return json::parse(json::string_view(text.data(), text.size()), error);
}

}  // namespace

std::optional<std::string> error_message(std::string_view body) {
  boost::system::error_code error;
  const json::value value = parse(body, error);
  return error ? std::nullopt : message_of(value);
}

CompletionStream::CompletionStream(std::size_t most_pieces)
    : most_pieces_(most_pieces), parser_([this](std::string_view data) { take_event(data); }) {}

bool CompletionStream::push(std::string_view bytes, Clock::time_point now) {
  if (answer_.failure) return false;
  now_ = now;
  try {
    parser_.push(bytes);
  } catch (const Error& error) {
    fail_with("bad_stream", error.what());
  }
  return !answer_.failure;
}

void CompletionStream::take_event(std::string_view data) {
  if (answer_.failure) return;
  if (is_done_) return fail_with("bad_stream", "an event after [DONE]");
  if (data == "[DONE]") {
    is_done_ = true;
    return;
  }
  boost::system::error_code error;
  const json::value chunk = parse(data, error);
  if (error || !chunk.is_object()) return fail_with("bad_stream", fmt::format("an event is no JSON object: {}", printable(data)));
  if (const auto message = message_of(chunk)) return fail_with("server_error", printable(*message, 500));
  const json::value* choices = member(chunk, "choices");
  if (choices == nullptr || !choices->is_array())
    return fail_with("bad_stream", fmt::format("an event without choices: {}", printable(data)));
  for (const json::value& choice : choices->get_array())
    if (is_piece(choice)) answer_.pieces.push_back(now_);
  if (answer_.pieces.size() >= most_pieces_)
    return fail_with("too_long", fmt::format("the answer goes on after {} pieces", answer_.pieces.size()));
  const json::value* usage = member(chunk, "usage");
  if (usage == nullptr || !usage->is_object()) return;
  answer_.prompt_tokens = count(*usage, "prompt_tokens");
  answer_.output_tokens = count(*usage, "completion_tokens");
  if (const json::value* details = member(*usage, "prompt_tokens_details"))
    answer_.cached_tokens = count(*details, "cached_tokens");
}

Answer CompletionStream::finish() {
  if (!answer_.failure) {
    try {
      parser_.finish();
    } catch (const Error& error) {
      fail_with("bad_stream", error.what());
    }
  }
  if (!answer_.failure && !is_done_) fail_with("closed", "the stream ended without [DONE]");
  if (!answer_.failure && answer_.pieces.empty()) fail_with("empty", "the answer holds no text");
  return std::move(answer_);
}

void CompletionStream::fail_with(std::string kind, std::string message) {
  answer_.failure = Failure{std::move(kind), std::move(message)};
}

}  // namespace quire::bench
