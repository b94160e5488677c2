// Model files as the engine sees them: the two formats give the same answers, and a damaged file an Error or an engine that
// works, never a crash. (tests/model/corruption_test.cc stops at the loader; here what it let through is also run.)
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "quire/error.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDamages = 150;  // per format
#else
constexpr int kDamages = 600;
#endif

Engine engine(const fs::path& path) { return Engine(path, {.num_threads = 1, .block_size = 8, .num_blocks = 64}); }

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

class EngineFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) / (std::string("engine_files_") + info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_ / "hf");
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path directory_;

 private:
  static const ::testing::TestInfo* info() { return ::testing::UnitTest::GetInstance()->current_test_info(); }
};

// Without the text: the two tiny tokenizers spell their reserved tokens differently.
void expect_same_bits(const Outcomes& a, const Outcomes& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, outcome] : a) {
    Outcome other = b.at(key);
    other.text = outcome.text;
    EXPECT_EQ(outcome, other) << "request " << key.first;
  }
}

// Tokens, and logprobs up to rounding.
void expect_same_tokens(const Outcomes& a, const Outcomes& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, outcome] : a) {
    const Outcome& other = b.at(key);
    EXPECT_EQ(outcome.tokens, other.tokens) << "request " << key.first;
    ASSERT_EQ(outcome.logprob_bits.size(), other.logprob_bits.size());
    for (std::size_t i = 0; i < outcome.logprob_bits.size(); ++i) {
      EXPECT_NEAR(std::bit_cast<float>(outcome.logprob_bits[i]), std::bit_cast<float>(other.logprob_bits[i]), 1e-3f);
    }
  }
}

TEST_F(EngineFiles, BothFormatsGiveTheSameAnswers) {
  for (const std::string family : {"llama", "qwen2", "qwen3", "gemma3"}) {
    SCOPED_TRACE(family);
    TinyModelSpec spec = tiny_model_spec(family);
    spec.weight_type = DType::kF32;  // in safetensors the weights are floats, so only those are the same weights
    write_gguf(spec, directory_ / "model.gguf");
    write_safetensors(spec, directory_ / "hf");
    const std::vector<Request> requests = mixed_requests(tiny_vocab_size(), 40, 8);
    Engine gguf = engine(directory_ / "model.gguf");
    Engine safetensors = engine(directory_ / "hf");
    const Outcomes a = run(gguf, requests), b = run(safetensors, requests);
    if (family == "llama") {
      expect_same_tokens(a, b);  // GGUF has the rows of its queries and keys in another order, in which their products are summed
    } else {
      expect_same_bits(a, b);
    }
  }
}

TEST_F(EngineFiles, ADirectoryOfGgufFilesIsNoModelButNamesOne) {
  const fs::path path = directory_ / "model.gguf";
  write_gguf(tiny_model_spec("llama"), path);
  const std::string hint =
      directory_.string() + ": a directory with GGUF files and no config.json; name a file, such as " + path.string();
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { engine(directory_); }), hint);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { load_tokenizer(directory_); }), hint);
}

// Loads what is there and generates a little with it.
void try_model(const fs::path& path, std::map<std::string, int>& results) {
  try {
    Engine e = engine(path);
    Request request;
    request.prompt = {1, 2, 3, 40};
    request.sampling.max_tokens = 6;
    request.sampling.seed = 1;
    request.sampling.logprobs = 1;
    const RequestId id = e.submit(request);
    FinishReason reason{};
    for (int step = 0; e.has_work() && step < 100; ++step) {
      for (const TokenEvent& event : e.step()) {
        EXPECT_EQ(event.request_id, id);
        reason = event.finish_reason;
      }
    }
    EXPECT_NE(reason, FinishReason::kNone) << "no end";
    ++results["ran"];
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    EXPECT_STRNE(error.what(), "");
    ++results[std::string(to_string(error.code()))];
  }
}

// Bytes flipped or overwritten, mostly where the structure is; now and then the end is cut off.
std::string damaged(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr std::size_t kStructure = 12'000;
  for (std::size_t flips = 1 + below(3); flips > 0; --flips) {
    const std::size_t place = below(below(4) > 0 ? std::min(bytes.size(), kStructure) : bytes.size());
    const char values[] = {'\xff', '\0', static_cast<char>(bytes[place] ^ (1 << below(8))), static_cast<char>('0' + below(10))};
    bytes[place] = values[below(4)];
  }
  if (below(20) == 0) bytes.resize(below(bytes.size()));
  return bytes;
}

TEST_F(EngineFiles, ADamagedGgufIsAnErrorOrAWorkingEngine) {
  const fs::path path = directory_ / "model.gguf";
  write_gguf(tiny_model_spec("gemma3"), path);
  const std::string good = read(path);
  std::mt19937 random(5);
  std::map<std::string, int> results;
  for (int i = 0; i < kDamages && !HasFailure(); ++i) {
    write(path, damaged(good, random));
    SCOPED_TRACE(i);
    try_model(path, results);
  }
  EXPECT_GT(results["ran"], 0);
  EXPECT_GT(results["invalid_file"], 0);
}

TEST_F(EngineFiles, ADamagedSafetensorsDirectoryIsAnErrorOrAWorkingEngine) {
  const fs::path path = directory_ / "hf";
  write_safetensors(tiny_model_spec("gemma3"), path);
  std::vector<std::pair<fs::path, std::string>> files;
  for (const auto& entry : fs::directory_iterator(path)) files.emplace_back(entry.path(), read(entry.path()));
  std::sort(files.begin(), files.end());
  std::mt19937 random(6);
  std::map<std::string, int> results;
  for (int i = 0; i < kDamages && !HasFailure(); ++i) {
    const auto& [file, good] = files[random() % files.size()];
    write(file, damaged(good, random));
    SCOPED_TRACE(std::to_string(i) + " " + file.filename().string());
    try_model(path, results);
    write(file, good);
  }
  EXPECT_GT(results["ran"], 0);
  EXPECT_GT(results["invalid_file"], 0);
}

}  // namespace
}  // namespace quire::test
