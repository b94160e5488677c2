// A step on the CUDA backend as the device sees it, which only the emulator can tell: one wait, one upload before it computes,
// nothing allocated, recorded launches; and what becomes of the requests when the device breaks or has no memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backend/cuda/cuda_backend.h"
#include "engine/batch_builder.h"
#include "engine/engine_impl.h"
#include "tests/engine/cuda_engine.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"
#include "tests/support/simt/cublas_lt.h"
#include "tests/support/simt/devices.h"
#include "tests/support/simt/runtime.h"

namespace quire::test {
namespace {

class CudaStep : public CudaEngineFixture {
 protected:
  void SetUp() override {
    CudaEngineFixture::SetUp();
    simt::break_device_after(-1);
    simt::fail_allocation_after(-1);
  }
};
INSTANTIATE_TEST_SUITE_P(Llama, CudaStep, ::testing::Values("llama"));

TEST_P(CudaStep, AllocatesNothingAndWaitsOnce) {
  Engine engine = cuda_engine(path_, cuda_options());
  simt::RuntimeCounts in_sampling;
  for (int i = 0; i < 3; ++i) {
    Request request = scored_request(static_cast<std::uint64_t>(i), 20 + i);
    request.sampling.prompt_logprobs.reset();
    request.sampling.max_tokens = 8;
    request.sampling.token_mask = [&](auto&&...) { in_sampling = simt::runtime_counts(); };
    engine.submit(request);
  }
  for (int step = 0; step < 3; ++step) engine.step();
  const simt::RuntimeCounts before = simt::runtime_counts();
  engine.step();
  const simt::RuntimeCounts& after = simt::runtime_counts();
  EXPECT_EQ(after.waits - before.waits, 1);
  EXPECT_EQ(after.downloads - before.downloads, 1);
  EXPECT_EQ(after.allocations - before.allocations, 0);
  // The batch; and, worked out while the device computes, what its rows are sampled with.
  EXPECT_EQ(in_sampling.uploads - before.uploads, 1);
  EXPECT_EQ(in_sampling.graph_launches - before.graph_launches, 1);
  EXPECT_EQ(in_sampling.waits - before.waits, 0);
  EXPECT_EQ(after.uploads - before.uploads, 2);
}

TEST_P(CudaStep, LaunchesRecordedSteps) {
  Engine engine = cuda_engine(path_, cuda_options());
  for (int i = 0; i < 4; ++i) {
    Request request = scored_request(static_cast<std::uint64_t>(i), 4);
    request.sampling.prompt_logprobs.reset();
    request.sampling.max_tokens = 10;
    engine.submit(request);
  }
  const std::int64_t before = simt::runtime_counts().graph_launches;
  while (engine.has_work()) engine.step();
  EXPECT_EQ(simt::runtime_counts().graph_launches - before, 8);  // of nine steps of decode rows all but the first
}

TEST_P(CudaStep, ADeviceErrorEndsEveryRequestAndRefusesMore) {
  for (const std::int64_t calls : {0, 5, 40}) {
    simt::break_device_after(-1);
    Engine engine = cuda_engine(path_, cuda_options());
    const RequestId first = engine.submit(scored_request(1, 20));
    const RequestId second = engine.submit(scored_request(2, 30));
    engine.step();
    simt::break_device_after(calls);
    std::map<RequestId, int> ends;
    bool threw = false;
    for (int step = 0; step < 10 && engine.has_work(); ++step) {
      try {
        for (const TokenEvent& event : engine.step()) {
          if (event.finish_reason == FinishReason::kNone) continue;
          EXPECT_EQ(event.finish_reason, FinishReason::kError);
          EXPECT_NE(event.error.find("cudaErrorIllegalAddress"), std::string::npos) << event.error;
          ++ends[event.request_id];
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.what();
        threw = true;
      }
    }
    EXPECT_TRUE(threw);
    EXPECT_EQ(ends, (std::map<RequestId, int>{{first, 1}, {second, 1}}));
    EXPECT_FALSE(engine.has_work());
    EXPECT_ERROR(engine.submit(scored_request(3, 4)), ErrorCode::kUnavailable, "failed");
  }
  simt::break_device_after(-1);
}

// Whatever comes: prompts in chunks, every filter and penalty, prompt logprobs, several choices, prefix hits, and steps as large
// as the options allow, with contexts as long. The pool may have left nothing.
TEST_P(CudaStep, AllocatesNothingOnceTheEngineIsMade) {
  for (const auto& [name, deterministic] : {std::pair{"llama", false}, {"gemma3", true}}) {
    SCOPED_TRACE(name);
    TinyModelSpec spec = cuda_model_spec(name);
    spec.max_context = 64;
    write_gguf(spec, path_);
    EngineOptions options = cuda_options();
    options.deterministic = deterministic;
    options.block_size = 8;
    options.max_batched_tokens = 24;
    options.max_running = 24;
    options.num_blocks = 2000;
    Engine engine = cuda_engine(path_, options);
    simt::fail_allocation_after(0);  // none is there for what would be nice to have either
    const simt::RuntimeObjects objects = simt::runtime_objects();
    const std::int64_t before = simt::runtime_counts().allocations, asked = simt::num_matmul_questions();
    const std::vector<Request> mixed = mixed_requests(tiny_vocab_size(), 40, 6);
    for (int i = 0; i < 2; ++i) (void)run(engine, mixed, {.per_step = 2});  // the second time from the prefix cache
    std::vector<Request> longest(24, scored_request(1, 57));                // all share their blocks, and fill every step
    for (Request& request : longest) {
      request.sampling.prompt_logprobs.reset();
      request.sampling.max_tokens = 6;
      request.sampling.logit_bias = {{3, 1.0f}, {4, -1.0f}};
      request.sampling.frequency_penalty = 0.5f;
      request.sampling.min_tokens = 6;
    }
    (void)run(engine, longest);
    EXPECT_GT(engine.stats().cached_tokens, 0);
    EXPECT_EQ(simt::runtime_counts().allocations, before);
    EXPECT_EQ(simt::runtime_objects().device_buffers, objects.device_buffers);
    EXPECT_EQ(simt::num_matmul_questions(), asked) << "cuBLASLt's algorithms are chosen and checked in a step";
    simt::fail_allocation_after(-1);
  }
}

// Whatever a step could meet is refused when the engine is made.
TEST_P(CudaStep, RefusesProductsThatSomeStepWouldLack) {
  simt::set_matmul_algorithms({{.except_columns = 37}});
  EngineOptions options = cuda_options();
  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    options.max_batched_tokens = 37;
    EXPECT_ERROR(cuda_engine(path_, options), ErrorCode::kUnsupported, "matmul: cuBLASLt has no algorithm for ");
    options.max_batched_tokens = 36;
    EXPECT_NO_THROW(cuda_engine(path_, options));
  }
  simt::set_matmul_algorithms({});
}

// A step that samples nothing returns before the device is done: neither its time nor that of the next, which does the waiting,
// says what prompts cost. The backend knows that, whatever the options call the device.
TEST_P(CudaStep, PacesByStepsThatWait) {
  for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kCpu}) {
    EngineOptions options = cuda_options();
    options.device = {kind, 0};
    options.kv_type = KvType::kBF16;
    options.max_batched_tokens = 64;
    options.max_step_ms = 3'600'000;
    Engine engine = make_engine(path_, options, create_cuda_backend({DeviceKind::kCuda, 0}, {}));
    Request request = scored_request(1, 150);
    request.sampling.prompt_logprobs.reset();
    engine.submit(request);
    for (int step = 0; step < 3; ++step) {
      engine.step();
      EXPECT_EQ(engine.stats().prefill_limit, 32) << "step " << step << " counts";
    }
    engine.step();
    engine.submit(scored_request(2, 20));
    engine.step();
    EXPECT_EQ(engine.stats().prefill_limit, 64) << "nothing counts";
  }
}

TEST_P(CudaStep, RefusesDevicesThatTheKernelsDoNotRunOn) {
  const auto make = [&](const simt::DeviceModel& model) {
    simt::set_device_model(model);
    return cuda_engine(path_, cuda_options());
  };
  EXPECT_ERROR(make({.major = 7, .minor = 5}), ErrorCode::kUnsupported, "device cuda:0 is sm_75, must be sm_80 or newer");
  EXPECT_ERROR(make({.block_shared_bytes = 98 * 1024}), ErrorCode::kUnsupported,
               "device cuda:0 (sm_80) gives a block 100352 bytes of shared memory, must be 101376 or more");
  for (const cudaError_t code : {cudaErrorInvalidDeviceFunction, cudaErrorInvalidKernelImage, cudaErrorNoKernelImageForDevice,
                                 cudaErrorJitCompilerNotFound, cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilationDisabled}) {
    EXPECT_ERROR(make({.major = 12, .code = code}), ErrorCode::kUnsupported,
                 std::string("device cuda:0 is sm_120, for which this build has no kernels (") + cudaGetErrorString(code) +
                     "): set CMAKE_CUDA_ARCHITECTURES");
  }
  Engine engine = make({.major = 8, .minor = 9});
  EXPECT_EQ(engine.stats().cpu_isa, "sm_89");
  EXPECT_EQ(run(engine, {scored_request(1, 20)}).size(), 1u);
  simt::set_device_model({});
}

TEST_P(CudaStep, SaysHowMuchMemoryTheDeviceCannotGive) {
  for (int count = 0; count < 6; ++count) {
    simt::fail_allocation_after(count);
    try {
      Engine engine = cuda_engine(path_, cuda_options());
      continue;  // fewer allocations than that
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
    }
  }
  simt::fail_allocation_after(-1);
}

}  // namespace
}  // namespace quire::test
