#include "benchmarks/serving/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "benchmarks/report.h"

namespace quire::bench {
namespace {

constexpr double kMs = 1e3;
constexpr double kMaxBins = 60;

// The narrowest of 0.1, 0.2, 0.5, 1, 2, 5, ... s that needs no more than kMaxBins.
double bin_width(double duration_s) {
  double power = 0.1;
  for (;; power *= 10)
    for (const double factor : {1.0, 2.0, 5.0})
      if (duration_s <= power * factor * kMaxBins) return power * factor;
}

double time_per_token_ms(const RequestRecord& record) {
  return (record.piece_s.back() - record.piece_s.front()) / (record.output_tokens - 1) * kMs;
}

bool is_good(const RequestRecord& record, const Limits& limits) {
  const auto keeps = [](const std::optional<double>& limit, double value) { return !limit || value <= *limit; };
  double largest_gap = 0;
  for (std::size_t i = 1; i < record.piece_s.size(); ++i)
    largest_gap = std::max(largest_gap, record.piece_s[i] - record.piece_s[i - 1]);
  return keeps(limits.ttft_ms, (record.piece_s.front() - record.due_s) * kMs) && keeps(limits.itl_ms, largest_gap * kMs) &&
         (record.output_tokens < 2 || keeps(limits.tpot_ms, time_per_token_ms(record))) &&
         keeps(limits.e2e_ms, (record.end_s - record.due_s) * kMs);
}

void add_latencies(const std::vector<RequestRecord>& records, Summary& summary) {
  std::vector<double> ttft, itl, tpot, e2e, lateness;
  for (const RequestRecord& record : records) {
    lateness.push_back((record.sent_s - record.due_s) * kMs);
    if (record.failure) continue;
    ttft.push_back((record.piece_s.front() - record.due_s) * kMs);
    for (std::size_t i = 1; i < record.piece_s.size(); ++i) itl.push_back((record.piece_s[i] - record.piece_s[i - 1]) * kMs);
    if (record.output_tokens > 1) tpot.push_back(time_per_token_ms(record));
    e2e.push_back((record.end_s - record.due_s) * kMs);
  }
  summary.ttft_ms = distribution_of(std::move(ttft));
  summary.itl_ms = distribution_of(std::move(itl));
  summary.tpot_ms = distribution_of(std::move(tpot));
  summary.e2e_ms = distribution_of(std::move(e2e));
  summary.lateness_ms = distribution_of(std::move(lateness));
}

void add_concurrency(const std::vector<RequestRecord>& records, Summary& summary) {
  std::vector<std::pair<double, int>> changes;  // an end before a start at the same time
  double open_s = 0;
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.due_s, 1);
    changes.emplace_back(record.end_s, -1);
    open_s += record.end_s - record.due_s;
  }
  std::sort(changes.begin(), changes.end());
  int open = 0;
  for (const auto& [time, change] : changes) {
    open += change;
    summary.max_concurrency = std::max(summary.max_concurrency, open);
  }
  summary.mean_concurrency = open_s / summary.duration_s;
}

void add_series(const std::vector<RequestRecord>& records, double start_s, Summary& summary) {
  summary.bin_s = bin_width(summary.duration_s);
  summary.tokens_per_s_over_time.resize(static_cast<std::size_t>(summary.duration_s / summary.bin_s) + 1);
  for (const RequestRecord& record : records) {
    if (record.failure) continue;
    const double per_piece = static_cast<double>(record.output_tokens) / static_cast<double>(record.piece_s.size());
    for (const double time : record.piece_s) {
      const auto bin = static_cast<std::size_t>(std::max(0.0, time - start_s) / summary.bin_s);
      summary.tokens_per_s_over_time[std::min(bin, summary.tokens_per_s_over_time.size() - 1)] += per_piece / summary.bin_s;
    }
  }
}

}  // namespace

double percentile(const std::vector<double>& sorted, double percent) { return quantile_of_sorted(sorted, percent / 100); }

Distribution distribution_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.count = values.size(),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = percentile(values, 50),
          .p90 = percentile(values, 90),
          .p99 = percentile(values, 99),
          .max = values.back()};
}

Summary summarize(const std::vector<RequestRecord>& records, const Limits& limits) {
  Summary summary;
  double start_s = 0, end_s = 0;
  for (const RequestRecord& record : records) {
    start_s = &record == &records.front() ? record.due_s : std::min(start_s, record.due_s);
    end_s = std::max(end_s, record.end_s);
    if (record.failure) {
      ++summary.num_failed;
      ++summary.failures[record.failure->kind];
      continue;
    }
    ++summary.num_completed;
    if (is_good(record, limits)) ++summary.num_good;
    if (record.output_tokens < record.asked_output_tokens) ++summary.num_short;
    if (!record.counted) ++summary.num_uncounted;
    summary.input_tokens += record.input_tokens;
    summary.output_tokens += record.output_tokens;
    summary.cached_tokens += record.cached_tokens;
  }
  if (summary.num_completed == 0) return summary;
  summary.duration_s = std::max(end_s - start_s, 1e-9);
  const auto per_second = [&](auto count) { return static_cast<double>(count) / summary.duration_s; };
  summary.requests_per_s = per_second(summary.num_completed);
  summary.good_requests_per_s = per_second(summary.num_good);
  summary.output_tokens_per_s = per_second(summary.output_tokens);
  summary.total_tokens_per_s = per_second(summary.input_tokens + summary.output_tokens);
  add_latencies(records, summary);
  add_concurrency(records, summary);
  add_series(records, start_s, summary);
  return summary;
}

}  // namespace quire::bench
