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

// ---- faults that peers' users reported

class PeerBugs : public CudaStep {};
INSTANTIATE_TEST_SUITE_P(Llama, PeerBugs, ::testing::Values("llama"));

// TensorRT-LLM PR 16088: a copy of a step's block tables still read the host buffer that the next step wrote. Here a step that
// samples nothing waits for nothing, and copies are done when somebody waits: all of a prompt's steps but the last lie in the
// queue together, each with tables of its own.
TEST_P(PeerBugs, B037_OverlappedStepsEachSeeTheirOwnTables) {
  const std::vector<Request> requests = {scored_request(1, 90), scored_request(2, 75)};
  const auto outcomes = [&](int budget) {
    EngineOptions options = cuda_options();
    options.block_size = 8;
    options.max_batched_tokens = budget;
    Engine engine = cuda_engine(path_, options);
    std::map<RequestId, int> place_of;
    Outcomes found;
    for (Request request : requests) {
      request.sampling.prompt_logprobs.reset();
      place_of.emplace(engine.submit(request), static_cast<int>(place_of.size()));
    }
    const simt::RuntimeCounts before = simt::runtime_counts();
    for (int tokens = 0; tokens + budget < 90; tokens += budget) collect(engine.step(), place_of, found);
    EXPECT_EQ(simt::runtime_counts().waits, before.waits);
    EXPECT_EQ(simt::runtime_counts().uploads - before.uploads, (90 - 1) / budget) << "the batches";
    while (engine.has_work()) collect(engine.step(), place_of, found);
    return found;
  };
  EXPECT_EQ(outcomes(8), outcomes(200));
}

// ik_llama.cpp PR 2096: a recorded step was replayed with the lengths that it was recorded with. Steps of thirty-one decode rows
// down to one, through every number of rows that steps are padded to, and hundreds of tokens. Decode attention cuts a context in
// two from 384 positions on, which the second answer passes among others and the first alone, and in three from 640. First with
// recordings, then on a device that has no memory for any.
TEST_P(PeerBugs, B086_RecordedStepsChangeNoBit) {
  constexpr int kRows[] = {31, 29, 25, 24, 20, 17, 16, 14, 13, 12, 10,
                           9,  8,  6,  5,  4,  3,  3,  2,  2,  2};  // of steps, one after the other
  TinyModelSpec spec = cuda_model_spec("llama");
  spec.max_context = 1024;
  spec.num_layers = spec.num_kv_heads = 1;
  spec.num_heads = 2;
  write_gguf(spec, path_);
  for (const auto& [deterministic, longest] : {std::pair{false, 300}, {true, 40}}) {
    EngineOptions options = cuda_options();
    options.deterministic = deterministic;
    options.max_batched_tokens = 2048;  // all prompts in the first step
    std::vector<Request> requests;
    for (int i = 0; i < kRows[0]; ++i) {
      Request request = scored_request(static_cast<std::uint64_t>(i), i < 2 ? 360 + 12 * i : i);
      request.sampling.prompt_logprobs.reset();
      request.sampling.logprobs = 0;
      const auto steps = std::count_if(std::begin(kRows), std::end(kRows), [&](int rows) { return rows > i; });
      request.sampling.max_tokens = i == 0 ? longest : 1 + static_cast<int>(steps);
      requests.push_back(request);
    }
    std::set<int> sizes;  // of steps of decode rows
    const auto outcomes = [&](int most_recordings) {
      simt::set_most_uploaded_graphs(most_recordings);
      Engine engine = cuda_engine(path_, options);
      std::map<RequestId, int> place_of;
      Outcomes found;
      for (const Request& request : requests) place_of.emplace(engine.submit(request), static_cast<int>(place_of.size()));
      while (engine.has_work()) {
        collect(engine.step(), place_of, found);
        if (const int rows = engine.stats().num_running; rows > 0) sizes.insert(padded_rows(rows, options.max_batched_tokens));
      }
      simt::set_most_uploaded_graphs(-1);
      return found;
    };
    const std::int64_t before = simt::runtime_counts().graph_launches;
    const Outcomes recorded = outcomes(-1);
    const std::int64_t replayed = simt::runtime_counts().graph_launches - before;
    EXPECT_EQ(sizes, (std::set<int>{1, 2, 4, 8, 12, 16, 24, 32}));
    EXPECT_GT(replayed, longest - 20) << "nearly all";
    EXPECT_EQ(outcomes(0), recorded) << (deterministic ? "deterministic" : "by load");
    EXPECT_EQ(simt::runtime_counts().graph_launches - before, replayed) << "none is recorded without memory";
  }
}

}  // namespace
}  // namespace quire::test
