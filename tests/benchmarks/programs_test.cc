// The offline benchmark programs on tiny models: what they report adds up, a plan of memory holds against the process's own, and
// bad input ends in a message on standard error, a status other than 0, and no figure.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using testing::HasSubstr;
using testing::Not;

fs::path folder() { return testing::TempDir(); }

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return (std::stringstream() << file.rdbuf()).str();
}

const std::string& tiny_model() {
  static const std::string path = [] {
    write_gguf(tiny_model_spec("llama"), folder() / "tiny.gguf");
    return (folder() / "tiny.gguf").string();
  }();
  return path;
}

struct Result {
  int status = -1;
  std::string out, error;

  json::object report() const {  // the last line
    const std::string body = out.substr(0, out.find_last_not_of('\n') + 1);
    return json::parse(body.substr(body.find_last_of('\n') + 1)).as_object();
  }
};

Result run(const std::string& program, const std::string& arguments) {
  const fs::path out = folder() / "out", error = folder() / "error";
  const std::string command =
      fmt::format("{}/{} {} > {} 2> {}", QUIRE_BENCH_FOLDER, program, arguments, out.string(), error.string());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(error)};
}

Result run_model(const std::string& program, const std::string& arguments) {
  return run(program, "--model " + tiny_model() + " --threads 1 " + arguments);
}

double number(const json::value& value) { return value.to_number<double>(); }

void expect_refusal(const std::string& program, const std::string& arguments, int status, const std::string& message) {
  const Result result = run(program, arguments);
  EXPECT_EQ(result.status, status) << program << ' ' << arguments << '\n' << result.error;
  EXPECT_THAT(result.error, HasSubstr(message)) << program << ' ' << arguments;
  EXPECT_EQ(result.out, "") << program << ' ' << arguments << " printed a figure";
}

// ---- bad input

TEST(BenchPrograms, RefuseWrongCommandLines) {
  for (const char* program : {"throughput_bench", "memory_report", "single_stream_bench", "load_bench", "matmul_bench",
                              "cpu_attention_bench", "scheduler_bench", "logprob_bench"}) {
    const bool has_model =
        std::string_view("throughput_bench memory_report single_stream_bench load_bench logprob_bench").find(program) !=
        std::string_view::npos;
    const std::string required = !has_model ? "" : program[0] == 'l' ? "--model x --golden x " : "--model x ";
    expect_refusal(program, required + "--no-such-flag", 2, "--no-such-flag");
    expect_refusal(program, required + "--json /nonexistent/folder/x.json", 2, "/nonexistent/folder");
  }
  for (const char* program : {"throughput_bench", "memory_report", "single_stream_bench", "logprob_bench"}) {
    expect_refusal(program, "", 2, "--model");
    expect_refusal(program, "--model x.gguf --threads -1", 2, "--threads");
  }
  for (const char* program : {"throughput_bench", "single_stream_bench", "matmul_bench", "cpu_attention_bench"}) {
    const std::string model = std::string_view(program).ends_with("m_bench") || program[0] == 't' ? "--model x.gguf " : "";
    expect_refusal(program, model + "--repeat 0", 2, "--repeat");
    expect_refusal(program, model + "--repeat -3", 2, "--repeat");
    expect_refusal(program, model + "--threads 1000000", 2, "--threads");
  }
  for (const char* flag :
       {"--prompts", "--prompt-tokens", "--output-tokens", "--concurrency", "--lock-step", "--max-batched-tokens"}) {
    expect_refusal("throughput_bench", fmt::format("--model x.gguf {} 0", flag), 2, flag);
    expect_refusal("throughput_bench", fmt::format("--model x.gguf {} 99999999999", flag), 2, flag);
    expect_refusal("throughput_bench", fmt::format("--model x.gguf {} many", flag), 2, flag);
  }
  expect_refusal("throughput_bench", "--model x.gguf --dataset d.jsonl --lock-step 1", 2, "--lock-step");
  expect_refusal("throughput_bench", "--model x.gguf --dataset ''", 2, "--dataset: the value is empty");
  expect_refusal("throughput_bench", "--model x.gguf --block-size 7", 2, "--block-size");
  for (const char* device : {"tpu", "CPU", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cuda1", "cuda:99999999999"})
    expect_refusal("throughput_bench", fmt::format("--model x.gguf --device {}", device), 2,
                   fmt::format("--device: '{}' is none", device));
  expect_refusal("throughput_bench", "--model x.gguf --shared-prefix 128", 2, "--shared-prefix 128 leaves nothing");
  expect_refusal("throughput_bench", "--model x.gguf --lock-step 2 --output-tokens 1", 2, "at least 2");
  expect_refusal("single_stream_bench", "--model x.gguf --output-tokens 1", 2, "--output-tokens");
  expect_refusal("memory_report", "--model x.gguf --memory -1G", 2, "--memory");
  expect_refusal("memory_report", "--model x.gguf --memory lots", 2, "--memory");
  expect_refusal("memory_report", "--model x.gguf --block-size 10", 2, "--block-size");
  expect_refusal("memory_report", "--model x.gguf --max-context 1", 2, "1 token holds no prompt");
  expect_refusal("memory_report", "--model x.gguf --kv-type q8", 2, "--kv-type");
  expect_refusal("matmul_bench", "--rows 0", 2, "--rows");
  expect_refusal("matmul_bench", "--shape 576x", 2, "576x");
  expect_refusal("matmul_bench", "--shape 0x64", 2, "0x64");
  expect_refusal("matmul_bench", "--type Q3", 2, "Q3");
  expect_refusal("matmul_bench", "--megabytes 0", 2, "--megabytes");
  expect_refusal("matmul_bench", "--seconds 0", 2, "--seconds");
  expect_refusal("cpu_attention_bench", "--decode 8", 2, "'8' is not");
  expect_refusal("cpu_attention_bench", "--decode 9999x9999999", 2, "9999x9999999");
  expect_refusal("cpu_attention_bench", "--prefill 1", 2, "--prefill");
  expect_refusal("scheduler_bench", "--steps 0", 2, "--steps");
}

TEST(BenchPrograms, RefuseOptionsThatCannotMatter) {
  const struct {
    const char *program, *arguments, *message;
  } cases[] = {
      {"throughput_bench", "--lock-step 2 --prompts 9", "--prompts does not apply with --lock-step"},
      {"throughput_bench", "--lock-step 2 --concurrency 9", "--concurrency does not apply with --lock-step"},
      {"throughput_bench", "--lock-step 2 --shared-prefix 9", "--shared-prefix does not apply with --lock-step"},
      {"throughput_bench", "--lock-step 2 --no-prefix-cache", "--no-prefix-cache does not apply with --lock-step"},
      {"throughput_bench", "--dataset d --prompts 9", "--prompts does not apply with --dataset"},
      {"throughput_bench", "--dataset d --prompt-tokens 9", "--prompt-tokens does not apply with --dataset"},
      {"throughput_bench", "--dataset d --shared-prefix 9", "--shared-prefix does not apply with --dataset"},
      {"throughput_bench", "--dataset d --seed 9", "--seed does not apply with --dataset"},
      {"memory_report", "--tokens 9", "--tokens does not apply without --memory"},
      {"matmul_bench", "--type Q4_K --shape 64x32", "--type Q4_K does not apply: no --shape has rows that are whole blocks"},
      {"matmul_bench", "--type Q4_K,Q8_0 --shape 64x32", "--type Q4_K does not apply"},
      {"matmul_bench", "--type Q4_K --shape 256x32,64x32", "--shape 64x32 does not apply"},
  };
  for (const auto& [program, arguments, message] : cases)
    expect_refusal(program, (program[0] == 'm' && program[1] == 'a' ? "" : "--model x.gguf ") + std::string(arguments), 2,
                   message);
}

TEST(BenchPrograms, RefuseListsWithGaps) {
  const struct {
    const char *program, *option, *piece;
  } lists[] = {{"throughput_bench", "--model x.gguf --lock-step", "2"},
               {"memory_report", "--model x.gguf --memory 1G --tokens", "2"},
               {"single_stream_bench", "--model x.gguf --prompt-tokens", "2"},
               {"matmul_bench", "--rows", "2"},
               {"matmul_bench", "--type", "Q8_0"},
               {"matmul_bench", "--shape", "64x32"},
               {"cpu_attention_bench", "--decode", "1x8"},
               {"cpu_attention_bench", "--prefill", "8"}};
  for (const auto& [program, option, piece] : lists) {
    for (const char* form : {"{0},,{0}", ",{0}", "{0},", ",", "''"}) {
      const std::string list = fmt::format(fmt::runtime(form), piece);
      expect_refusal(program, fmt::format("{} {}", option, list), 2, "has an empty piece");
    }
  }
}

// The first that is unknown comes first, and a required option that is misspelt is called unknown, not missing.
TEST(BenchPrograms, NameUnknownOptionsInTheirOrder) {
  expect_refusal("memory_report", "--modle x --zeal", 2, "The following arguments were not expected: --modle x --zeal\n");
  expect_refusal("memory_report", "--modle", 2, "The following argument was not expected: --modle\n");
  expect_refusal("scheduler_bench", "--a --b c", 2, "not expected: --a --b c\n");
  expect_refusal("memory_report", "", 2, "--model is required");
}

TEST(BenchPrograms, RefuseWhatIsNoModel) {
  std::ofstream(folder() / "broken.gguf") << "GGUF, or so it says";
  for (const char* program : {"throughput_bench", "memory_report", "single_stream_bench", "load_bench"}) {
    expect_refusal(program, "--model /nonexistent.gguf", 1, "/nonexistent.gguf: no such file");
    expect_refusal(program, "--model " + (folder() / "broken.gguf").string(), 1, "broken.gguf");
  }
  expect_refusal("matmul_bench", "--isa mmx --megabytes 1", 1, "'mmx' kernels");
  expect_refusal("cpu_attention_bench", "--isa mmx --megabytes 1", 1, "'mmx' kernels");
}

TEST(BenchPrograms, RefuseWhatTheModelCannotHold) {
  const std::string model = "--model " + tiny_model() + " ";
  expect_refusal("throughput_bench", model + "--prompt-tokens 1000 --prompts 2", 1, "1000");
  expect_refusal("throughput_bench", model + "--prompt-tokens 250 --output-tokens 50 --prompts 2", 1,
                 "longer than the context of 256");
  expect_refusal("throughput_bench", model + "--lock-step 2 --prompt-tokens 200 --output-tokens 100", 1,
                 "longer than the context");
  expect_refusal("memory_report", model + "--memory 1000", 1, "--memory 1000 leaves 0 bytes");
  expect_refusal("memory_report", model + "--max-context 257", 1, "--max-context 257");
  expect_refusal("single_stream_bench", model + "--prompt-tokens 8,1000", 1, "1000");
}

// No machine has so many GPUs, and most builds know of none.
TEST(BenchPrograms, RefuseAbsentDevices) {
  expect_refusal("throughput_bench", "--model " + tiny_model() + " --device cuda:4321", 1, "device cuda:4321");
}

TEST(BenchPrograms, RefuseBrokenDataSets) {
  const fs::path path = folder() / "data.jsonl";
  const auto expect = [&](const std::string& text, const std::string& message) {
    std::ofstream(path) << text;
    expect_refusal("throughput_bench", "--model " + tiny_model() + " --dataset " + path.string(), 1, message);
  };
  expect_refusal("throughput_bench", "--model " + tiny_model() + " --dataset /nonexistent.jsonl", 1, "/nonexistent.jsonl");
  expect_refusal("throughput_bench", "--model " + tiny_model() + " --dataset /", 1, "the data set / is a folder");
  expect("", "is empty");
  expect("\n\n", "is empty");
  const std::string whole = "expected a whole number from 1 to 1048576";
  expect(R"({"prompt": "a"})"
         "\n"
         R"({"prompt": )"
         "\n",
         R"(data.jsonl:2: incomplete JSON, expected a JSON object: {"prompt": )");
  expect(R"({"prompt": "a"}x)", R"(data.jsonl:1: extra data, expected a JSON object: {"prompt": "a"}x)");
  expect("[1]", "data.jsonl:1: the line is [1], expected a JSON object");
  expect("{}", "data.jsonl:1: there is neither prompt nor prompt_ids");
  expect(R"({"prompt": 5})", "data.jsonl:1: prompt is 5, expected a text");
  expect(R"({"prompt": null})", "data.jsonl:1: prompt is null, expected a text");
  expect(R"({"prompt": ""})", "data.jsonl:1: the prompt has no token");
  expect(R"({"prompt_ids": "1 2"})", "data.jsonl:1: prompt_ids is \"1 2\", expected a list");
  expect(R"({"prompt_ids": [1, "2"]})", "data.jsonl:1: prompt_ids[1] is \"2\", expected a token's id");
  expect(R"({"prompt_ids": [1, -2]})", "data.jsonl:1: prompt_ids[1] is -2, expected a token's id");
  expect(R"({"prompt_ids": [1.5]})", "data.jsonl:1: prompt_ids[0] is 1.5E0, expected a token's id");
  expect(R"({"prompt_ids": [99999999999]})", "data.jsonl:1: prompt_ids[0] is 99999999999, expected a token's id");
  expect(R"({"prompt_ids": []})", "data.jsonl:1: the prompt has no token");
  for (const char* value : {"0", "-5", "2000000", "\"9\"", "null"})
    expect(fmt::format(R"({{"prompt_ids": [1], "output_tokens": {}}})", value),
           fmt::format("data.jsonl:1: output_tokens is {}, {}", value, whole));
  expect("{\"prompt_ids\": [1]}\n\n{\"prompt_ids\": [7, 4000000]}\n",
         "data.jsonl:3: prompt[1] is token 4000000, outside the vocabulary");
  expect(R"({"prompt_ids": [1], "output_tokens": 256})", "data.jsonl:1: a prompt of 1 tokens and an answer of 256 are longer");
  expect(R"({"prompt": ")" + std::string(5000, 'a') + R"("})", "data.jsonl:1: prompt: 1250 tokens");
}

TEST(BenchPrograms, RefuseBrokenGoldenFiles) {
  const fs::path path = folder() / "golden.jsonl";
  const auto expect = [&](const std::string& text, const std::string& message) {
    std::ofstream(path) << text;
    expect_refusal("logprob_bench", "--model " + tiny_model() + " --golden " + path.string(), 1, "golden.jsonl:1: " + message);
  };
  const std::string begin = R"({"name": "a", "prompt": "b", "prompt_ids": [1, 2], )";
  expect(R"({"prompt": "b"})", "there is no name, expected a text");
  expect(begin + R"("prompt_logprobs": [null], "greedy": []})", "prompt_logprobs[0] is null, expected a number");
  expect(begin + R"("prompt_logprobs": [], "greedy": []})", "0 prompt_logprobs for 2 prompt_ids");
  expect(begin + R"("prompt_logprobs": [-1], "greedy": 5})", "greedy is 5, expected a list");
  expect(begin + R"("prompt_logprobs": [-1], "greedy": [5]})", "greedy[0] is 5, expected an object");
  expect(begin + R"("prompt_logprobs": [-1], "greedy": [{"id": 3}]})", "there is no logprob, expected a number");
}

// ---- results

TEST(BenchPrograms, ThroughputCountsWhatItServed) {
  const Result result = run_model("throughput_bench",
                                  "--prompts 6 --prompt-tokens 80 --shared-prefix 64 --output-tokens 9 "
                                  "--concurrency 2 --repeat 2 --json " +
                                      (folder() / "t.json").string());
  ASSERT_EQ(result.status, 0) << result.error;
  const json::object report = result.report();
  EXPECT_EQ(report.at("requests").to_number<int>(), 6);
  EXPECT_EQ(report.at("prompt_tokens_total").to_number<int>(), 480);
  EXPECT_EQ(report.at("output_tokens_total").to_number<int>(), 54);
  EXPECT_GE(report.at("cached_tokens_total").to_number<int>(), 4 * 64);  // the first two compute it side by side
  EXPECT_EQ(report.at("max_running").to_number<int>(), 2);
  EXPECT_EQ(report.at("device"), "cpu");
  const json::object& rate = report.at("output_tokens_per_s").as_object();
  EXPECT_LE(number(rate.at("min")), number(rate.at("median")));
  EXPECT_LE(number(rate.at("median")), number(rate.at("max")));
  EXPECT_NEAR(54 / number(report.at("seconds").as_object().at("min")), number(rate.at("max")), 1e-6 * number(rate.at("max")));
  for (const char* key : {"bench", "revision", "date", "cpu", "isa", "model", "threads", "seed", "repeats"})
    EXPECT_TRUE(report.contains(key)) << key;
  EXPECT_EQ(json::parse(read_file(folder() / "t.json")), json::value(report));
}

TEST(BenchPrograms, ThroughputReadsADataSet) {
  std::ofstream(folder() / "set.jsonl") << "{\"prompt_ids\": [1, 2, 3], \"output_tokens\": 4}\n\n{\"prompt\": \"hello\"}\n";
  const Result result =
      run_model("throughput_bench", "--repeat 1 --output-tokens 7 --dataset " + (folder() / "set.jsonl").string());
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.report().at("output_tokens_total").to_number<int>(), 11);
  EXPECT_EQ(result.report().at("requests").to_number<int>(), 2);
}

TEST(BenchPrograms, ThroughputSaysThatThePoolIsTooSmall) {
  TinyModelSpec spec = tiny_model_spec("llama");
  spec.num_layers = 40;  // 5 KB a token
  write_gguf(spec, folder() / "deep.gguf");
  const std::string arguments = "--model " + (folder() / "deep.gguf").string() + " --kv-megabytes 1 --prompts 1 --prompt-tokens ";
  expect_refusal("throughput_bench", arguments + "100 --output-tokens 150", 1,
                 "tokens instead of 150: the KV pool of 11 blocks holds no more");
  expect_refusal("throughput_bench", arguments + "200 --output-tokens 50", 1, "200 tokens, but the KV pool of 11 blocks holds");
}

TEST(BenchPrograms, RepeatsOfADataSetFindNothingOfEachOther) {
  std::ofstream file(folder() / "long.jsonl");
  for (int line = 0; line < 2; ++line) {
    file << "{\"prompt_ids\": [";
    for (int i = 0; i < 64; ++i) file << (i > 0 ? ", " : "") << (10 + (31 * line + 7 * i) % 200);
    file << "], \"output_tokens\": 2}\n";
  }
  file.close();
  const Result result = run_model("throughput_bench", "--repeat 3 --dataset " + (folder() / "long.jsonl").string());
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.report().at("cached_tokens_total").to_number<int>(), 0);
  // Neither do the rows of lock-step.
  const Result twice = run_model("throughput_bench", "--lock-step 2,2 --prompt-tokens 40 --output-tokens 20 --repeat 1");
  EXPECT_EQ(twice.status, 1);
  EXPECT_THAT(twice.error, HasSubstr("in the prefix cache already"));
  EXPECT_EQ(twice.out, "");
}

TEST(BenchPrograms, LockStepMeasuresEveryNumberOfStreams) {
  const Result result = run_model("throughput_bench", "--lock-step 1,3 --prompt-tokens 40 --output-tokens 20 --repeat 1");
  ASSERT_EQ(result.status, 0) << result.error;
  const json::array rows = result.report().at("rows").as_array();
  ASSERT_EQ(rows.size(), 2u);
  for (const json::value& row : rows) {
    const double streams = number(row.at("streams"));
    const auto figure = [&](const char* name) { return number(row.at(name).at("median")); };
    EXPECT_NEAR(figure("s_pp") * figure("t_pp_s"), streams * 40, 1e-3);
    // All but the first tokens, which end the prompts, and what streams are ahead of the last one by.
    const double tokens = figure("s_tg") * figure("t_tg_s");
    EXPECT_LE(tokens, streams * 19 + 1e-3);
    EXPECT_GE(tokens, streams * 17);
  }
}

TEST(BenchPrograms, KernelBenchesReportEveryLine) {
  const std::string quick = "--megabytes 1 --seconds 0.001 --repeat 1 --threads 1 ";
  const Result matmul = run("matmul_bench", quick + "--type Q4_1,Q4_K --shape 64x32,256x32 --rows 1,8");
  ASSERT_EQ(matmul.status, 0) << matmul.error;
  EXPECT_EQ(matmul.report().at("rows").as_array().size(), 6u);  // Q4_K has no rows of 64
  const Result attention = run("cpu_attention_bench", quick + "--decode 2x20 --prefill 17");
  ASSERT_EQ(attention.status, 0) << attention.error;
  EXPECT_EQ(attention.report().at("rows").as_array().size(), 4u);
  for (const json::object& report : {matmul.report(), attention.report()}) {
    EXPECT_GT(number(report.at("read_gb_per_s")), 0.0);
    for (const json::value& row : report.at("rows").as_array()) {
      EXPECT_GT(number(row.at("gb_per_s")), 0.0);
      EXPECT_GT(number(row.at("share_of_bound")), 0.0);
    }
  }
  const Result unwritable = run("matmul_bench", quick + "--type F32 --shape 64x32 --rows 1 --json /dev/full");
  EXPECT_EQ(unwritable.status, 1);
  EXPECT_THAT(unwritable.error, HasSubstr("cannot write /dev/full"));
  EXPECT_THAT(unwritable.out, Not(HasSubstr("\"bench\"")));
}

TEST(BenchPrograms, LoadIsTimedBesideARead) {
  TinyModelSpec spec;
  write_safetensors(spec, folder() / "load");
  for (const std::string& path : {tiny_model(), (folder() / "load").string()}) {
    const Result result = run("load_bench", "--repeat 2 --threads 1 --model " + path);
    ASSERT_EQ(result.status, 0) << result.error;
    const json::object report = result.report();
    std::uintmax_t bytes = fs::is_directory(path) ? 0 : fs::file_size(path);
    if (bytes == 0)
      for (const auto& entry : fs::directory_iterator(path)) bytes += entry.file_size();
    EXPECT_EQ(report.at("file_bytes").to_number<std::uintmax_t>(), bytes) << path;
    EXPECT_GT(report.at("peak_bytes").to_number<std::int64_t>(), 0);
    for (const char* state : {"page_cache", "page_cache_dropped"}) {
      const json::object& times = report.at(state).as_object();
      const double read = number(times.at("read_s").at("median")), load = number(times.at("load_s").at("median"));
      EXPECT_GT(read, 0.0);
      EXPECT_NEAR(load / read, number(times.at("ratio")), 1e-6 * load / read) << state;
    }
  }
}

// ---- memory

TEST(MemoryReport, PlansFromTheHeaderOfEveryFormat) {
  TinyModelSpec spec;
  spec.tied = false;
  const std::string split = write_split_gguf(spec, folder() / "split", 3).back().string();
  write_gguf(spec, folder() / "whole.gguf");
  write_safetensors(spec, folder() / "hf");
  const std::int64_t parameters = 2 * 320 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96);
  for (const std::string& path : {split, (folder() / "whole.gguf").string(), (folder() / "hf").string()}) {
    const Result result = run("memory_report", "--threads 1 --memory 10M --tokens 64,255,256,1000 --model " + path);
    ASSERT_EQ(result.status, 0) << result.error;
    const json::object plan = result.report().at("plan").as_object();
    EXPECT_EQ(plan.at("parameters").to_number<std::int64_t>(), parameters) << path;
    EXPECT_EQ(plan.at("weight_bytes").to_number<std::int64_t>(), parameters * 4) << path;
    EXPECT_EQ(plan.at("kv_token_bytes").to_number<std::int64_t>(), 2 * 2 * 2 * 16 * 2) << path;
    EXPECT_EQ(plan.at("kv_block_bytes").to_number<std::int64_t>(), 16 * 256) << path;
    const json::object capacity = result.report().at("capacity").as_object();
    const auto kv_bytes = capacity.at("kv_bytes").to_number<std::int64_t>();
    const auto blocks = capacity.at("blocks").to_number<std::int64_t>();
    EXPECT_EQ(kv_bytes, 10'000'000 - parameters * 4 - plan.at("activation_bytes").to_number<std::int64_t>() -
                            plan.at("scratch_bytes").to_number<std::int64_t>());
    EXPECT_EQ(blocks, kv_bytes / 4096 - 1);
    const json::array requests = capacity.at("requests").as_array();
    ASSERT_EQ(requests.size(), 3u);  // the model holds no 1,000 tokens
    EXPECT_EQ(requests[0].at("requests").to_number<std::int64_t>(), blocks / 4);
    EXPECT_EQ(requests[2].at("requests").to_number<std::int64_t>(), blocks / 16);
  }
}

// Weights as the engine keeps them, to the byte: 330 rows of the embedding are 336 in panels, norms are F32 whatever the file
// has.
TEST(MemoryReport, CountsWeightsAsTheEngineKeepsThem) {
  for (const bool tied : {true, false}) {
    TinyModelSpec spec;
    spec.vocab_size = 330;
    spec.weight_type = DType::kQ8_0;
    spec.tied = tied;
    write_gguf(spec, folder() / "panels.gguf");
    const Result result = run("memory_report", "--measure --threads 1 --model " + (folder() / "panels.gguf").string());
    ASSERT_EQ(result.status, 0) << result.error;
    const json::object report = result.report();
    const auto planned = report.at("plan").at("weight_bytes").to_number<std::int64_t>();
    EXPECT_EQ(planned, report.at("measured").at("weight_bytes").to_number<std::int64_t>()) << result.out;
    constexpr std::int64_t kRow = 64 / 32 * 34, kWideRow = 96 / 32 * 34;  // bytes of rows of 64 and of 96 weights
    constexpr std::int64_t kLayer = (2 * 64 + 2 * 32 + 2 * 96) * kRow + 64 * kWideRow, kNorms = 5 * 64 * 4;
    EXPECT_EQ(planned, (336 + (tied ? 0 : 330)) * kRow + 2 * kLayer + kNorms);
  }
}

// Long enough that pages and allocators' slack hardly count: 54 MB of weights and 34 MB of KV.
TEST(MemoryReport, ClaimsWhatAnEngineTakes) {
  TinyModelSpec spec;
  spec.num_layers = 4;
  spec.hidden_size = 512;
  spec.num_heads = spec.num_kv_heads = 8;
  spec.head_size = 64;
  spec.mlp_size = 1024;
  spec.max_context = 2048;
  spec.vocab_size = 4096;
  write_gguf(spec, folder() / "large.gguf");
  const Result result = run("memory_report", "--measure --threads 2 --model " + (folder() / "large.gguf").string());
  ASSERT_EQ(result.status, 0) << result.error;
  const double ratio = number(result.report().at("measured").at("ratio"));
  EXPECT_GT(ratio, 0.92) << result.out;
  EXPECT_LT(ratio, 1.08) << result.out;
}

}  // namespace
}  // namespace quire::test
