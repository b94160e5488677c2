#include "benchmarks/serving/report.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

namespace quire::bench {
namespace {

namespace json = boost::json;

void add_row(std::string& out, std::string_view name, const Distribution& d) {
  if (d.count == 0) return;
  out += fmt::format("{:<24}{:>11.2f}{:>11.2f}{:>11.2f}{:>11.2f}{:>11.2f}\n", name, d.mean, d.p50, d.p90, d.p99, d.max);
}

template <typename... Args>
void add_line(std::string& out, std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
  out += fmt::format("{:<24}", name) + fmt::format(format, std::forward<Args>(args)...) + "\n";
}

// Enough digits for any clock, and none that only look like knowledge.
double rounded(double value) { return std::isfinite(value) ? std::round(value * 1e4) / 1e4 : 0; }

json::value to_json(const Distribution& d) {
  if (d.count == 0) return nullptr;
  return json::object{{"mean", rounded(d.mean)}, {"p50", rounded(d.p50)}, {"p90", rounded(d.p90)},
                      {"p99", rounded(d.p99)},   {"max", rounded(d.max)}, {"count", d.count}};
}

}  // namespace

std::string LoadName::text() const {
  if (kind == "closed") return fmt::format("closed loop of {:g} streams", value);
  if (value == 0) return fmt::format("{}, all at once", kind);  // no time passes in which a rate could be
  return fmt::format("{}, {:.4g} requests/s", kind, value);
}

std::string table(const LoadName& load, const Summary& s, const Limits& limits) {
  std::string out = fmt::format("\n{}\n", load.text());
  add_line(out, "requests", "{} answered, {} failed, in {:.2f} s", s.num_completed, s.num_failed, s.duration_s);
  add_line(out, "open at once", "{:.1f} on average, at most {}", s.mean_concurrency, s.max_concurrency);
  add_line(out, "tokens", "{} in ({} of them cached), {} out", s.input_tokens, s.cached_tokens, s.output_tokens);
  add_line(out, "requests/s", "{:.3f}", s.requests_per_s);
  add_line(out, "output tokens/s", "{:.1f}", s.output_tokens_per_s);
  add_line(out, "tokens/s, both", "{:.1f}", s.total_tokens_per_s);
  if (limits.any())
    add_line(out, "goodput", "{:.3f} requests/s ({} of {} within the limits)", s.good_requests_per_s, s.num_good,
             s.num_completed);
  out += fmt::format("{:<24}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "milliseconds", "mean", "p50", "p90", "p99", "max");
  add_row(out, "time to first token", s.ttft_ms);
  add_row(out, "inter-token latency", s.itl_ms);
  add_row(out, "time per output token", s.tpot_ms);
  add_row(out, "end-to-end latency", s.e2e_ms);
  if (load.kind != "closed") add_row(out, "generator's lateness", s.lateness_ms);
  if (s.num_short > 0) add_line(out, "note", "{} answers are shorter than asked for", s.num_short);
  if (s.num_uncounted > 0)
    add_line(out, "note", "the target did not count the tokens of {} answers: their pieces were counted", s.num_uncounted);
  return out;
}

json::object to_json(const LoadName& load, const Summary& s, const Limits& limits) {
  json::object failures;
  for (const auto& [kind, count] : s.failures) failures[kind] = count;
  json::array series;
  for (const double value : s.tokens_per_s_over_time) series.push_back(rounded(value));
  return {{"load", json::object{{"kind", load.kind}, {"value", load.value}}},
          {"requests", json::object{{"completed", s.num_completed},
                                    {"failed", s.num_failed},
                                    {"failures", failures},
                                    {"short_answers", s.num_short},
                                    {"counted_by_pieces", s.num_uncounted},
                                    {"good", limits.any() ? json::value(s.num_good) : json::value(nullptr)}}},
          {"duration_s", rounded(s.duration_s)},
          {"mean_concurrency", rounded(s.mean_concurrency)},
          {"max_concurrency", s.max_concurrency},
          {"total_input_tokens", s.input_tokens},
          {"total_cached_tokens", s.cached_tokens},
          {"total_output_tokens", s.output_tokens},
          {"requests_per_s", rounded(s.requests_per_s)},
          {"good_requests_per_s", limits.any() ? json::value(rounded(s.good_requests_per_s)) : json::value(nullptr)},
          {"output_tokens_per_s", rounded(s.output_tokens_per_s)},
          {"total_tokens_per_s", rounded(s.total_tokens_per_s)},
          {"ttft_ms", to_json(s.ttft_ms)},
          {"itl_ms", to_json(s.itl_ms)},
          {"tpot_ms", to_json(s.tpot_ms)},
          {"e2e_ms", to_json(s.e2e_ms)},
          {"lateness_ms", to_json(s.lateness_ms)},
          {"output_tokens_per_s_over_time", json::object{{"bin_s", s.bin_s}, {"values", series}}}};
}

std::string describe_failures(const std::vector<RequestRecord>& records) {
  std::map<std::string, std::pair<std::size_t, std::string>> kinds;
  std::size_t total = 0;
  for (const RequestRecord& record : records) {
    if (!record.failure || record.failure->kind == "cancelled") continue;
    auto& [count, message] = kinds[record.failure->kind];
    if (count++ == 0) message = record.failure->message;
    ++total;
  }
  std::string out = fmt::format("{} of {} requests failed:", total, records.size());
  for (const auto& [kind, entry] : kinds) out += fmt::format("\n  {} x {}: {}", entry.first, kind, entry.second);
  return out;
}

}  // namespace quire::bench
