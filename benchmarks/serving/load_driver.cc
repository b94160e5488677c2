#include "benchmarks/serving/load_driver.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace quire::bench {
namespace {

constexpr std::chrono::milliseconds kProgressPeriod(250);

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

Clock::duration from_seconds(double time) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time));
}

// What the answers write and the driver waits for. Held by the sinks too: an answer may come when the driver is gone (it threw).
struct Ledger {
  std::mutex mutex;
  std::condition_variable changed;
  Clock::time_point start;
  std::vector<RequestRecord> records;  // fixed size during the run
  LoadProgress progress;
};

void write_down(Answer answer, RequestRecord& record, Clock::time_point start) {
  for (const Clock::time_point piece : answer.pieces) record.piece_s.push_back(seconds(piece - start));
  record.end_s = answer.failure || record.piece_s.empty() ? seconds(Clock::now() - start) : record.piece_s.back();
  record.input_tokens = answer.prompt_tokens.value_or(record.input_tokens);
  record.counted = answer.output_tokens.has_value();
  record.output_tokens = answer.output_tokens.value_or(static_cast<int>(record.piece_s.size()));
  record.cached_tokens = answer.cached_tokens.value_or(0);
  record.failure = std::move(answer.failure);
  if (!record.failure && record.piece_s.empty()) record.failure = Failure{"empty", "the answer holds no token"};
}

class Run {
 public:
  Run(const std::vector<PlannedRequest>& workload, Target& target, const LoadOptions& options)
      : workload_(workload), target_(target), options_(options), ledger_(std::make_shared<Ledger>()) {
    ledger_->records.resize(workload.size());
    ledger_->progress.total = workload.size();
  }

  RunRecord go() {
    std::optional<Launch> next;
    if (!workload_.empty()) next = target_.prepare(workload_[0]);
    ledger_->start = Clock::now();
    give_up_at_ = ledger_->start + options_.timeout;
    if (options_.num_streams == 0 && !workload_.empty()) give_up_at_ += from_seconds(workload_.back().due_s);
    std::size_t num_sent = 0;
    while (num_sent < workload_.size() && wait_for_turn(num_sent)) {
      send(num_sent, *next);
      if (++num_sent < workload_.size()) next = target_.prepare(workload_[num_sent]);
    }
    const bool given_up = !wait_for_answers();
    if (given_up) {
      target_.cancel_all();
      std::unique_lock lock(ledger_->mutex);
      ledger_->changed.wait(lock, [&] { return ledger_->progress.done == num_sent; });
    }
    ledger_->records.resize(num_sent);
    return {std::move(ledger_->records), given_up, timed_out_};
  }

 private:
  bool has_too_many_failures() const { return ledger_->progress.failed > options_.allowed_failures; }

  bool has_to_end() {
    timed_out_ = timed_out_ || Clock::now() >= give_up_at_;
    return timed_out_ || has_too_many_failures();
  }

  // Shows the progress outside the lock.
  void report(std::unique_lock<std::mutex>& lock) {
    if (!options_.on_progress || Clock::now() - last_report_ < kProgressPeriod) return;
    last_report_ = Clock::now();
    const LoadProgress progress = ledger_->progress;
    lock.unlock();
    options_.on_progress(progress);
    lock.lock();
  }

  // Until the next request is due. False: the run is given up.
  bool wait_for_turn(std::size_t index) {
    const bool is_open_loop = options_.num_streams == 0;
    const Clock::time_point due = ledger_->start + from_seconds(is_open_loop ? workload_[index].due_s : 0);
    std::unique_lock lock(ledger_->mutex);
    for (;;) {
      if (has_to_end()) return false;
      const LoadProgress& progress = ledger_->progress;
      const bool has_stream = progress.sent - progress.done < static_cast<std::size_t>(options_.num_streams);
      if (is_open_loop ? Clock::now() >= due : has_stream) return true;
      report(lock);
      const auto until = Clock::now() + kProgressPeriod;
      ledger_->changed.wait_until(lock, is_open_loop ? std::min(due, until) : until);
    }
  }

  // False: the run is given up.
  bool wait_for_answers() {
    std::unique_lock lock(ledger_->mutex);
    while (ledger_->progress.done < ledger_->progress.sent) {
      if (has_to_end()) return false;
      report(lock);
      ledger_->changed.wait_for(lock, kProgressPeriod);
    }
    return !timed_out_ && !has_too_many_failures();
  }

  void send(std::size_t index, const Launch& launch) {
    const PlannedRequest& planned = workload_[index];
    {
      const std::lock_guard lock(ledger_->mutex);
      RequestRecord& record = ledger_->records[index];
      record.sent_s = seconds(Clock::now() - ledger_->start);
      record.due_s = options_.num_streams == 0 ? planned.due_s : record.sent_s;
      record.asked_output_tokens = planned.output_tokens;
      record.input_tokens = planned.input_tokens;
      ++ledger_->progress.sent;
    }
    launch([ledger = ledger_, index](Answer answer) {
      const std::lock_guard lock(ledger->mutex);
      RequestRecord& record = ledger->records[index];
      write_down(std::move(answer), record, ledger->start);
      ++ledger->progress.done;
      if (record.failure) ++ledger->progress.failed;
      ledger->changed.notify_all();
    });
  }

  const std::vector<PlannedRequest>& workload_;
  Target& target_;
  const LoadOptions& options_;
  std::shared_ptr<Ledger> ledger_;
  Clock::time_point last_report_ = {};
  Clock::time_point give_up_at_ = {};
  bool timed_out_ = false;
};

}  // namespace

RunRecord run_load(const std::vector<PlannedRequest>& workload, Target& target, const LoadOptions& options) {
  return Run(workload, target, options).go();
}

}  // namespace quire::bench
