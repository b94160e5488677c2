#include "benchmarks/serving/workload.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "benchmarks/serving/seeded_random.h"

namespace quire::bench {
namespace {

// Keys of segments: what a trace shares, what every request of a run shares, and what is one request's own never meet.
constexpr std::uint64_t kSharedPrefixKey = 1;
constexpr std::uint64_t kKeysOfARun = std::uint64_t{1} << 40;
constexpr std::uint64_t kTraceKeys = std::uint64_t{1} << 62;
constexpr std::uint64_t kOwnKeys = std::uint64_t{1} << 63;
constexpr std::uint64_t kWarmupKeys = kTraceKeys + kOwnKeys;

int draw(const LengthRange& range, SeededRandom& random) {
  return range.least + static_cast<int>(random.below(static_cast<std::uint64_t>(range.most - range.least) + 1));
}

int cut(int length, int limit) { return limit > 0 ? std::min(length, limit) : length; }

int scaled(int length, double scale) { return std::max(1, static_cast<int>(std::lround(length * scale))); }

void add_segment(PlannedRequest& request, std::uint64_t key, int length) {
  if (length <= 0) return;
  request.prompt.push_back({key, length});
  request.input_tokens += length;
}

}  // namespace

LengthRange parse_length_range(std::string_view text, std::string_view field) {
  const auto number = [&](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 1 || value > 1 << 24)
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is '{}': give a number of tokens, or two as 64:512", field, text));
    return value;
  };
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {number(text), number(text)};
  const LengthRange range{number(text.substr(0, colon)), number(text.substr(colon + 1))};
  if (range.most < range.least)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is '{}': the second number is the smaller", field, text));
  return range;
}

std::vector<PlannedRequest> draw_workload(const WorkloadSpec& spec, const Trace& lengths, const std::vector<double>& due_s) {
  SeededRandom random(spec.seed, 2);
  std::vector<PlannedRequest> requests(spec.num_requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    PlannedRequest& request = requests[i];
    if (!due_s.empty()) request.due_s = due_s[i];
    int input = draw(spec.input_tokens, random);
    request.output_tokens = draw(spec.output_tokens, random);
    if (!lengths.rows.empty()) {
      const TraceRow& row = lengths.rows[random.below(lengths.rows.size())];
      input = cut(row.input_tokens, spec.max_input_tokens);
      request.output_tokens = cut(row.output_tokens, spec.max_output_tokens);
    }
    add_segment(request, kSharedPrefixKey + spec.run * kKeysOfARun, spec.prefix_tokens);
    add_segment(request, kOwnKeys + spec.run * kKeysOfARun + i, input);
  }
  return requests;
}

std::vector<PlannedRequest> replay_workload(const WorkloadSpec& spec, const ReplaySpec& replay, const Trace& trace,
                                            const std::string& name) {
  if (replay.first_row < 1 || replay.first_row > trace.rows.size())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--trace-first-row is {}, of the {} that {} holds", replay.first_row, trace.rows.size(), name));
  const int block_tokens = scaled(kMooncakeBlockTokens, replay.length_scale);
  std::vector<PlannedRequest> requests;
  for (std::size_t i = replay.first_row - 1; i < trace.rows.size() && requests.size() < spec.num_requests; ++i) {
    const TraceRow& row = trace.rows[i];
    PlannedRequest request;
    request.due_s = (row.time_s - trace.rows[replay.first_row - 1].time_s) * replay.time_scale;
    const double gap = requests.empty() ? 0 : request.due_s - requests.back().due_s;
    if (gap > replay.max_gap_s)
      throw Error(ErrorCode::kInvalidFile,
                  fmt::format("{} line {}: nothing arrives for {:.6g} s before it, over --max-gap-s {:g}: give a smaller "
                              "--time-scale or other rows",
                              name, row.line, gap, replay.max_gap_s));
    const int input = cut(scaled(row.input_tokens, replay.length_scale), spec.max_input_tokens);
    request.output_tokens = cut(scaled(row.output_tokens, replay.length_scale), spec.max_output_tokens);
    add_segment(request, kSharedPrefixKey, spec.prefix_tokens);
    int left = input;
    for (const std::int64_t id : row.block_ids) {
      const int length = std::min(left, block_tokens);
      add_segment(request, kTraceKeys + static_cast<std::uint64_t>(id), length);
      left -= length;
    }
    add_segment(request, kOwnKeys + row.line, left);
    requests.push_back(std::move(request));
  }
  if (const double last_s = requests.empty() ? 0 : requests.back().due_s; !(last_s <= kLongestRunS))
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: the rows would take {:.3g} s with a time scale of {:g}, over {:g}",
                                                         name, last_s, replay.time_scale, kLongestRunS));
  return requests;
}

std::vector<PlannedRequest> warmup_workload(const std::vector<PlannedRequest>& requests, std::size_t count) {
  std::vector<PlannedRequest> warmup(requests.empty() ? 0 : count);
  for (std::size_t i = 0; i < warmup.size(); ++i) {
    const PlannedRequest& like = requests[i % requests.size()];
    warmup[i].output_tokens = like.output_tokens;
    add_segment(warmup[i], kWarmupKeys + i, like.input_tokens);
  }
  return warmup;
}

}  // namespace quire::bench
