// An engine on the CUDA backend, for the tests of it: on the emulator, which plays GPU, runtime and cuBLASLt, or on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "quire/engine.h"
#include "tests/support/tiny_model.h"

namespace quire::test {

// tiny_model_spec(family) with head sizes that the kernels have; what else is particular to a family stays.
TinyModelSpec cuda_model_spec(const std::string& family);

EngineOptions cuda_options();
Engine cuda_engine(const std::string& path, const EngineOptions& options);

// `length` tokens, six greedy ones after them, and logprobs of all.
Request scored_request(std::uint64_t seed, int length);

// With a model file of the family that is the parameter, and a poisoned pool.
class CudaEngineFixture : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("QUIRE_KV_POISON", "1", 1);
    write_gguf(cuda_model_spec(family()), path_);
  }
  void TearDown() override { unsetenv("QUIRE_KV_POISON"); }

  std::string family() const { return GetParam(); }
  std::string path_ = (std::filesystem::path(::testing::TempDir()) / "model.gguf").string();
};

}  // namespace quire::test
