// SseParser: server-sent events (WHATWG HTML, section 9.2) from pieces of a body, cut anywhere.
//
// Stricter than a browser, since a benchmark must not measure what it does not understand: a line that is neither empty, a
// comment nor one of the four fields is an error, and so is an end in the middle of an event.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace quire::bench {

class SseParser {
 public:
  // Gets the data of each event that has any: its lines, joined by '\n'.
  explicit SseParser(std::function<void(std::string_view data)> on_event) : on_event_(std::move(on_event)) {}

  // Throws Error(kInvalidArgument) naming the line; after that, nothing more may be pushed.
  void push(std::string_view bytes);
  // The body has ended. Throws if that was in the middle of an event.
  void finish() const;

 private:
  void take_line(std::string_view line);

  std::function<void(std::string_view)> on_event_;
  std::string line_;  // without its end, which has not come yet
  std::string data_;  // of the event that has begun
  bool has_data_ = false;
  bool in_event_ = false;
  bool after_cr_ = false;  // an LF now belongs to the line's end before it
  bool at_start_ = true;
  std::size_t num_lines_ = 0;
};

}  // namespace quire::bench
