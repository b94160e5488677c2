// How large an engine on a CUDA device makes the KV pool if nothing is said about it (docs/kv_cache.md), by what the device has
// free once the weights and the arrays of steps are there; and what it says of a device with too little.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/engine/cuda_engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/simt/runtime.h"

namespace quire::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class CudaPoolSize : public CudaEngineFixture {
 protected:
  void SetUp() override {
    CudaEngineFixture::SetUp();
    const Engine engine = cuda_engine(path_, cuda_options());
    block_bytes_ = engine.options().kv_cache_bytes / engine.options().num_blocks;
  }
  void TearDown() override {
    set_free(1024 * kMiB);
    CudaEngineFixture::TearDown();
  }

  static void set_free(std::int64_t bytes) { simt::set_free_bytes(static_cast<std::size_t>(bytes)); }
  static EngineOptions options() {
    EngineOptions options = cuda_options();
    options.num_blocks = 0;
    return options;
  }
  // What an engine on a device with `bytes` free finds free when it makes the pool: the error of too large a pool says it.
  std::int64_t free_for_pool(std::int64_t bytes) const {
    set_free(bytes);
    EngineOptions too_many = cuda_options();
    too_many.num_blocks = bytes / block_bytes_ + 1;
    const std::string error = error_of(ErrorCode::kOutOfMemory, [&] { cuda_engine(path_, too_many); });
    long long wanted = 0, free = 0;
    EXPECT_EQ(std::sscanf(error.c_str(), "device cuda:0 cannot give %lld bytes; %lld are free", &wanted, &free), 2) << error;
    EXPECT_EQ(wanted, too_many.num_blocks * block_bytes_);
    return free;
  }

  std::int64_t block_bytes_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Families, CudaPoolSize, ::testing::Values("qwen3", "gemma3"));

// Both bounds to the block. Weights and arrays are not counted as free.
TEST_P(CudaPoolSize, HalfOfWhatIsFreeUpTo256MiB) {
  for (const std::int64_t free : {120 * kMiB, 200 * kMiB, 1024 * kMiB}) {
    SCOPED_TRACE(free);
    const std::int64_t left = free_for_pool(free), most = std::min(left / 2, 256 * kMiB);
    EXPECT_LT(left, free - 64 * kMiB);  // the backend's workspace
    const Engine engine = cuda_engine(path_, options());
    EXPECT_LE(engine.stats().kv_bytes, most);
    EXPECT_GT(engine.stats().kv_bytes, most - block_bytes_);
    EXPECT_EQ(engine.options().kv_cache_bytes, engine.stats().kv_bytes);
  }
}

TEST_P(CudaPoolSize, TooLittleIsRefusedWithBothNumbers) {
  const std::int64_t taken = 120 * kMiB - free_for_pool(120 * kMiB);
  const std::int64_t least = block_bytes_ * (family() == "gemma3" ? 7 : 2);  // a block for each KV group, and block 0
  set_free(taken + 2 * (least - 1));
  EXPECT_EQ(error_of(ErrorCode::kOutOfMemory, [&] { cuda_engine(path_, options()); }),
            "EngineOptions::kv_cache_bytes is " + std::to_string(least - 1) + " (half of the free memory), less than the " +
                std::to_string(least) + " bytes that this model needs at least: " + std::to_string(least / block_bytes_) +
                " blocks of " + std::to_string(block_bytes_) + " bytes");
}

}  // namespace
}  // namespace quire::test
