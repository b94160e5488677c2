#include "benchmarks/serving/sse_parser.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>

#include "benchmarks/serving/printable.h"

namespace quire::bench {
namespace {

constexpr std::size_t kMaxEventBytes = 16 << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

void SseParser::push(std::string_view bytes) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    if (bytes.empty()) {
      after_cr_ = false;
      return;
    }
    after_cr_ = false;
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes)
      throw Error(ErrorCode::kInvalidArgument, fmt::format("an event of over {} bytes", kMaxEventBytes));
    if (end == bytes.size()) return;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    const std::string line = std::move(line_);
    line_.clear();
    take_line(line);
  }
}

void SseParser::take_line(std::string_view line) {
  ++num_lines_;
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    const std::string data = std::move(data_);
    const bool has_data = has_data_;
    data_.clear();
    has_data_ = in_event_ = false;
    if (has_data) on_event_(data);
    return;
  }
  if (line.front() == ':') return;  // a comment, often sent to keep the connection alive
  const std::size_t colon = std::min(line.find(':'), line.size());
  const std::string_view field = line.substr(0, colon);
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field != "data" && field != "event" && field != "id" && field != "retry")
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("line {} of the stream is no server-sent event: {}", num_lines_, printable(line)));
  in_event_ = true;
  if (field != "data") return;
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

void SseParser::finish() const {
  if (in_event_ || !line_.empty()) throw Error(ErrorCode::kInvalidArgument, "the stream ended in the middle of an event");
}

}  // namespace quire::bench
