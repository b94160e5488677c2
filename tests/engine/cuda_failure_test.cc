// Everything that can fail on a device fails once, at every place of a short generation: the device breaks in the k-th piece of
// work, or at the k-th call; the k-th allocation finds no memory. Whatever happens, the engine says so once, ends every request,
// refuses more, and gives everything back to the runtime. Every third place is tried, all with QUIRE_EVERY_FAILURE=1.
#include <gtest/gtest.h>

#include "tests/engine/cuda_engine.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"
#include "tests/support/simt/runtime.h"

namespace quire::test {
namespace {

std::int64_t stride() { return std::getenv("QUIRE_EVERY_FAILURE") != nullptr ? 1 : 3; }

bool names_the_device(const std::string& error) {
  return error.find("cudaErrorIllegalAddress") != std::string::npos ||
         error.find("CUBLAS_STATUS_EXECUTION_FAILED") != std::string::npos;
}

class CudaFailure : public CudaEngineFixture {
 protected:
  void SetUp() override {
    heal();
    TinyModelSpec spec = cuda_model_spec("llama");
    spec.num_layers = 1;
    write_gguf(spec, path_);
    before_ = simt::runtime_objects();
    {
      Engine engine = cuda_engine(path_, options());
      expected_ = run(engine, requests());
    }
    ASSERT_EQ(simt::runtime_objects(), before_);
  }
  void TearDown() override { heal(); }

  static void heal() {
    simt::break_device_after(-1);
    simt::fail_allocation_after(-1);
  }
  static EngineOptions options() {
    EngineOptions options = cuda_options();
    options.num_blocks = 20;
    options.max_batched_tokens = 16;
    return options;
  }
  static std::vector<Request> requests() {
    std::vector<Request> all = {scored_request(1, 6), scored_request(2, 3)};
    for (Request& request : all) {
      request.sampling.prompt_logprobs.reset();
      request.sampling.max_tokens = 4;
      request.sampling.logprobs = 0;
    }
    return all;
  }

  void check_broken(Engine& engine);

  simt::RuntimeObjects before_;
  Outcomes expected_;
};
INSTANTIATE_TEST_SUITE_P(Llama, CudaFailure, ::testing::Values("llama"));

// Runs the requests on an engine whose device breaks on the way.
void CudaFailure::check_broken(Engine& engine) {
  std::map<RequestId, int> place_of;
  std::map<int, Outcome> outcomes;
  for (const Request& request : requests()) place_of[engine.submit(request)] = static_cast<int>(place_of.size());
  int num_thrown = 0;
  for (int step = 0; step < 20 && engine.has_work(); ++step) {
    try {
      for (const TokenEvent& event : engine.step()) {
        Outcome& outcome = outcomes[place_of.at(event.request_id)];
        ASSERT_EQ(outcome.finish_reason, FinishReason::kNone);
        if (event.token >= 0) outcome.tokens.push_back(event.token);
        outcome.finish_reason = event.finish_reason;
        if (event.finish_reason != FinishReason::kError) continue;
        ASSERT_TRUE(names_the_device(event.error)) << event.error;
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kDevice) << error.what();
      ++num_thrown;
    }
  }
  ASSERT_EQ(num_thrown, 1);
  ASSERT_FALSE(engine.has_work());
  for (int place = 0; place < 2; ++place) {  // what came before is right, and the end is there
    const std::vector<TokenId>& wanted = expected_.at({place, 0}).tokens;
    const Outcome& outcome = outcomes[place];
    ASSERT_LT(outcome.tokens.size(), wanted.size());
    ASSERT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), wanted.begin()));
    ASSERT_EQ(outcome.finish_reason, FinishReason::kError);
  }
  ASSERT_EQ(engine.stats().held_blocks, 0);
  EXPECT_ERROR(engine.submit(requests().front()), ErrorCode::kUnavailable, "failed");
  ASSERT_TRUE(engine.step().empty());
}

TEST_P(CudaFailure, TheDeviceBreaksInAnyPieceOfWork) {
  simt::RuntimeCounts& counts = simt::runtime_counts();
  const auto num_pieces = [&] { return counts.launches + counts.uploads + counts.downloads; };
  std::int64_t total = 0;
  {
    Engine engine = cuda_engine(path_, options());
    const std::int64_t begin = num_pieces();
    (void)run(engine, requests());
    total = num_pieces() - begin;
  }
  ASSERT_GT(total, 50);
  for (std::int64_t k = 0; k < total; k += stride()) {
    SCOPED_TRACE(::testing::Message() << "piece " << k << " of " << total);
    {
      Engine engine = cuda_engine(path_, options());
      simt::break_device_after(k);
      ASSERT_NO_FATAL_FAILURE(check_broken(engine));
    }
    ASSERT_EQ(simt::runtime_objects(), before_);
    heal();
  }
}

TEST_P(CudaFailure, TheDeviceBreaksAtAnyCall) {
  std::int64_t total = 0;
  {
    Engine engine = cuda_engine(path_, options());
    const std::int64_t begin = simt::runtime_counts().calls;
    (void)run(engine, requests());
    total = simt::runtime_counts().calls - begin;
  }
  ASSERT_GT(total, 30);
  for (std::int64_t k = 0; k < total; k += stride()) {
    SCOPED_TRACE(::testing::Message() << "call " << k << " of " << total);
    {
      Engine engine = cuda_engine(path_, options());
      simt::break_device_at_call(k);
      ASSERT_NO_FATAL_FAILURE(check_broken(engine));
    }
    ASSERT_EQ(simt::runtime_objects(), before_);
    heal();
  }
}

// While the engine is made.
TEST_P(CudaFailure, ADeviceThatIsBrokenFromTheStartMakesNoEngine) {
  std::int64_t total = simt::runtime_counts().calls;
  { Engine engine = cuda_engine(path_, options()); }
  total = simt::runtime_counts().calls - total;
  for (std::int64_t k = 0; k < total - 1; k += stride() + k / 8) {
    SCOPED_TRACE(::testing::Message() << "call " << k << " of " << total);
    simt::break_device_at_call(k);
    EXPECT_ERROR(cuda_engine(path_, options()), ErrorCode::kDevice, "");
    ASSERT_EQ(simt::runtime_objects(), before_);
    heal();
  }
}

// The k-th allocation fails, first those of the engine, then those of its steps, which are recordings alone: without them the
// answers are the same.
TEST_P(CudaFailure, AnyAllocationFails) {
  int num_refused = 0, num_answered = 0;
  for (std::int64_t k = 0;; ++k) {
    SCOPED_TRACE(::testing::Message() << "allocation " << k);
    const std::int64_t failed = simt::runtime_counts().failed_allocations;
    simt::fail_allocation_after(k);
    try {
      Engine engine = cuda_engine(path_, options());
      ASSERT_EQ(run(engine, requests()), expected_);
      ++num_answered;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      ++num_refused;
    }
    ASSERT_EQ(simt::runtime_objects(), before_);
    if (simt::runtime_counts().failed_allocations == failed) break;  // there are no more
  }
  EXPECT_GE(num_refused, 9);  // workspace, staging, handle, weights, sampling, arrays, rows, pool, activations, frequencies
  EXPECT_GE(num_answered, 2);
}

}  // namespace
}  // namespace quire::test
