// CompletionStream: what the events of an OpenAI endpoint mean, of /completions and of /chat/completions alike: pieces of text,
// counts of tokens, an error, the end. Pure: bytes in, an Answer out.
//
// A piece is a chunk with text, or one that has neither text, role nor finish_reason (a token whose text is not complete yet). So
// the chunk that opens a chat and the one that closes an answer are no pieces, unless they bring text.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "benchmarks/serving/sse_parser.h"
#include "benchmarks/serving/target.h"

namespace quire::bench {

class CompletionStream {
 public:
  // An answer of so many pieces has failed, for its server does not stop at the tokens asked for.
  explicit CompletionStream(std::size_t most_pieces = std::numeric_limits<std::size_t>::max());
  CompletionStream(const CompletionStream&) = delete;
  CompletionStream& operator=(const CompletionStream&) = delete;

  // Bytes of the body that came at `now`. False: the answer has failed, and nothing more need be read.
  bool push(std::string_view bytes, Clock::time_point now);
  // The body has ended; returns the answer. One that did not end with [DONE], or has no text, has failed.
  Answer finish();

 private:
  void take_event(std::string_view data);
  void fail_with(std::string kind, std::string message);

  std::size_t most_pieces_;
  Answer answer_;
  SseParser parser_;
  Clock::time_point now_ = {};
  bool is_done_ = false;
};

// The message of an OpenAI error, {"error": {"message": ...}} or {"error": "..."}, if `body` is one.
std::optional<std::string> error_message(std::string_view body);

}  // namespace quire::bench
