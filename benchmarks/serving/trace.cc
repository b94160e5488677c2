#include "benchmarks/serving/trace.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr double kMaxTokens = 1 << 24;

struct Place {
  const std::string& name;
  std::size_t line = 0;
};

[[noreturn]] void reject(const Place& place, const std::string& message) {
  throw Error(ErrorCode::kInvalidFile, fmt::format("{} line {}: {}", place.name, place.line, message));
}

// Fields of a line; none of the traces quotes any.
std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t at = 0;;) {
    const std::size_t comma = std::min(line.find(',', at), line.size());
    fields.push_back(line.substr(at, comma - at));
    if (comma == line.size()) return fields;
    at = comma + 1;
  }
}

double parse_number(std::string_view text, std::string_view field, const Place& place) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    reject(place, fmt::format("{} is '{}', not a number", field, text));
  return value;
}

int checked_tokens(double value, std::string_view field, int least, const Place& place) {
  if (value != std::floor(value) || value < least || value > kMaxTokens)
    reject(place, fmt::format("{} is {}, not a whole number from {} to {}", field, value, least, kMaxTokens));
  return static_cast<int>(value);
}

int parse_digits(std::string_view text, std::size_t at, std::size_t count) {
  int value = -1;
  if (at + count > text.size()) return -1;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + count, value);
  return error == std::errc() && end == text.data() + at + count ? value : -1;
}

// "2023-11-16 18:17:03.9799600", with any number of digits after the point; seconds since 1970.
double parse_date_time(std::string_view text, std::string_view field, const Place& place) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:";
  bool well_formed = text.size() > kForm.size();
  for (std::size_t i = 0; well_formed && i < kForm.size(); ++i) well_formed = kForm[i] == 'd' || kForm[i] == text[i];
  const int hour = parse_digits(text, 11, 2), minute = parse_digits(text, 14, 2);
  const std::chrono::year_month_day date(std::chrono::year(parse_digits(text, 0, 4)),
                                         std::chrono::month(static_cast<unsigned>(parse_digits(text, 5, 2))),
                                         std::chrono::day(static_cast<unsigned>(parse_digits(text, 8, 2))));
  if (!well_formed || !date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59)
    reject(place, fmt::format("{} is '{}', not a date and time as 2023-11-16 18:17:03.97", field, text));
  const double second = parse_number(text.substr(kForm.size()), field, place);
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
}

// A column by any of its names in the published files.
struct ColumnName {
  std::string_view name;
  double seconds = 0;  // of a unit of time; 0: a date and time
};
constexpr std::array<ColumnName, 4> kTimes = {{{"t_ms", 1e-3}, {"t_s", 1}, {"Timestamp", 1}, {"TIMESTAMP", 0}}};
constexpr std::array<std::string_view, 3> kInputs = {"input_tokens", "ContextTokens", "Request tokens"};
constexpr std::array<std::string_view, 3> kOutputs = {"output_tokens", "GeneratedTokens", "Response tokens"};

class CsvReader {
 public:
  CsvReader(std::string_view header, const Place& place) {
    const std::vector<std::string_view> names = split(header);
    num_columns_ = names.size();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto claim = [&](std::size_t& column) {
        if (column != kNone) reject(place, fmt::format("'{}' and '{}' say the same", names[column], names[i]));
        column = i;
      };
      for (const ColumnName& time : kTimes)
        if (names[i] == time.name) claim(time_), time_name_ = time;
      if (std::find(kInputs.begin(), kInputs.end(), names[i]) != kInputs.end()) claim(input_);
      if (std::find(kOutputs.begin(), kOutputs.end(), names[i]) != kOutputs.end()) claim(output_);
    }
    if (input_ == kNone || output_ == kNone) reject(place, fmt::format("no known trace begins with '{}'", header.substr(0, 100)));
    is_burst_ = time_ != kNone && time_name_.seconds == 1;
  }

  std::string format() const { return time_ == kNone ? "lengths" : is_burst_ ? "burstgpt" : "azure"; }

  TraceRow read(std::string_view line, const Place& place) const {
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != num_columns_)
      reject(place, fmt::format("{} fields, where the first line has {}", fields.size(), num_columns_));
    TraceRow row{.line = place.line};
    if (time_ != kNone) row.time_s = time(fields[time_], place);
    // BurstGPT marks a request that failed by no tokens.
    const int least = is_burst_ ? 0 : 1;
    row.input_tokens = checked_tokens(parse_number(fields[input_], "input tokens", place), "input tokens", least, place);
    row.output_tokens = checked_tokens(parse_number(fields[output_], "output tokens", place), "output tokens", least, place);
    return row;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  double time(std::string_view text, const Place& place) const {
    if (time_name_.seconds == 0) return parse_date_time(text, "time", place);
    return parse_number(text, "time", place) * time_name_.seconds;
  }

  std::size_t num_columns_ = 0, time_ = kNone, input_ = kNone, output_ = kNone;
  ColumnName time_name_;
  bool is_burst_ = false;
};

double json_number(const json::object& object, std::string_view key, const Place& place) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_number()) reject(place, fmt::format("no number '{}'", key));
  const double number = value->to_number<double>();
  if (!std::isfinite(number)) reject(place, fmt::format("{} is {}, too large a number", key, number));
  return number;
}

TraceRow read_mooncake(std::string_view line, const Place& place) {
  boost::system::error_code error;
  const json::value value = json::parse(json::string_view(line.data(), line.size()), error);
  if (error || !value.is_object()) reject(place, "not a JSON object");
  const json::object& object = value.get_object();
  TraceRow row{.line = place.line, .time_s = json_number(object, "timestamp", place) * 1e-3};
  row.input_tokens = checked_tokens(json_number(object, "input_length", place), "input_length", 1, place);
  row.output_tokens = checked_tokens(json_number(object, "output_length", place), "output_length", 1, place);
  const json::value* ids = object.if_contains("hash_ids");
  if (ids == nullptr || !ids->is_array()) reject(place, "no list 'hash_ids'");
  for (const json::value& id : ids->get_array()) {
    if (!id.is_int64() || id.get_int64() < 0) reject(place, "hash_ids holds something that is no id");
    row.block_ids.push_back(id.get_int64());
  }
  const int num_blocks = (row.input_tokens + kMooncakeBlockTokens - 1) / kMooncakeBlockTokens;
  if (row.block_ids.size() != static_cast<std::size_t>(num_blocks))
    reject(place, fmt::format("{} hash_ids for {} tokens, which are {} blocks of {}", row.block_ids.size(), row.input_tokens,
                              num_blocks, kMooncakeBlockTokens));
  return row;
}

// Lines without their ends; the last may lack one.
std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// From the file's own clock to seconds since the first row.
void check_times(Trace& trace, const std::string& name) {
  if (trace.format == "lengths" || trace.rows.empty()) return;
  const double start = trace.rows.front().time_s;
  double last = start;
  for (TraceRow& row : trace.rows) {
    if (row.time_s < last)
      reject({name, row.line}, fmt::format("its time is {:.3f} s before the line before it", last - row.time_s));
    last = row.time_s;
    row.time_s -= start;
  }
}

}  // namespace

Trace parse_trace(const std::string& text, const std::string& name) {
  if (text.starts_with("\x1f\x8b")) throw Error(ErrorCode::kInvalidFile, fmt::format("{} is compressed: gunzip it first", name));
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // which some spreadsheets write
  const std::size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const std::vector<std::string_view> lines = split_lines(std::string_view(text).substr(begin));
  if (lines.empty()) throw Error(ErrorCode::kInvalidFile, fmt::format("{} is empty", name));
  Place place{name, 1};
  Trace trace;
  const bool is_json = lines[0].starts_with('{');
  std::optional<CsvReader> csv;
  if (!is_json) csv.emplace(lines[0], place);
  trace.format = is_json ? "mooncake" : csv->format();
  for (std::size_t i = is_json ? 0 : 1; i < lines.size(); ++i) {
    place.line = i + 1;
    if (lines[i].empty()) reject(place, "is empty");
    trace.rows.push_back(is_json ? read_mooncake(lines[i], place) : csv->read(lines[i], place));
  }
  check_times(trace, name);
  const auto failed = std::remove_if(trace.rows.begin(), trace.rows.end(),
                                     [](const TraceRow& row) { return row.input_tokens == 0 || row.output_tokens == 0; });
  trace.num_skipped = static_cast<std::size_t>(trace.rows.end() - failed);
  trace.rows.erase(failed, trace.rows.end());
  if (trace.rows.empty()) throw Error(ErrorCode::kInvalidFile, fmt::format("{} holds no requests", name));
  return trace;
}

Trace read_trace(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorCode::kInvalidFile, fmt::format("{} is a folder, not a trace", path));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", path, std::strerror(errno)));
  return parse_trace(text.str(), path);
}

}  // namespace quire::bench
