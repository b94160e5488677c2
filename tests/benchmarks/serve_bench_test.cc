// The program itself, on a tiny model and against a server: its results, and that bad input gives a message and no figure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/benchmarks/fake_server.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

namespace json = boost::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int status = -1;
  std::string out, err;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Outcome run(const std::string& arguments, const std::string& environment = {}) {
  const std::string out = testing::TempDir() + "/out", err = testing::TempDir() + "/err";
  const std::string command = environment + std::string(QUIRE_SERVE_BENCH) + " " + arguments + " > " + out + " 2> " + err;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out), text_of(err)};
}

const std::string& tiny_model() {
  static const std::string path = [] {
    std::string file = testing::TempDir() + "/tiny.gguf";
    write_gguf({}, file);
    return file;
  }();
  return path;
}

std::string on_tiny(const std::string& arguments, const std::string& lengths = "--input-tokens 8:40 --output-tokens 3:9 ") {
  return "--model " + tiny_model() + " --threads 1 --kv-cache-mib 4 --num-requests 12 " + lengths + arguments;
}

TEST(ServeBench, MeasuresTheLibraryInAClosedLoop) {
  const Outcome outcome = run(on_tiny("--streams 1,4 --prefix-tokens 32 --json - --slo-ttft-ms 60000"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("closed loop of 1 streams"), HasSubstr("12 answered, 0 failed")));
  std::istringstream lines(outcome.out);
  std::vector<json::value> results;
  for (std::string line; std::getline(lines, line);) results.push_back(json::parse(line));
  ASSERT_EQ(results.size(), 2u);
  for (const json::value& result : results) {
    EXPECT_EQ(result.at("bench"), "serve");
    EXPECT_EQ(result.at("model"), "tiny.gguf");
    EXPECT_GT(result.at("model_bytes").to_number<int>(), 1000);
    EXPECT_EQ(result.at("requests").at("completed"), 12);
    EXPECT_EQ(result.at("requests").at("good"), 12);
    EXPECT_EQ(result.at("requests").at("short_answers"), 0);
    EXPECT_EQ(result.at("parameters").at("threads"), 1);
    EXPECT_EQ(result.at("parameters").at("seed"), 1);
    EXPECT_GT(result.at("total_cached_tokens").to_number<int>(), 0) << "the shared prefix is found";
    EXPECT_GT(result.at("ttft_ms").at("p50").to_number<double>(), 0);
    for (const char* key : {"revision", "build", "compiler", "cpu", "isa"})
      EXPECT_FALSE(result.at(key).as_string().empty()) << key;
    EXPECT_GT(result.at("cores").to_number<int>(), 0);
    EXPECT_EQ(result.at("date").as_string().size(), 20u);
  }
  EXPECT_EQ(results[0].at("total_output_tokens"), results[1].at("total_output_tokens")) << "one seed, one load";
  EXPECT_EQ(results[0].at("max_concurrency"), 1);
}

TEST(ServeBench, MeasuresOpenLoopsAndTraces) {
  const std::string file = testing::TempDir() + "/results.jsonl";
  const Outcome poisson = run(on_tiny("--rate 400 --max-step-ms 50 --json " + file));
  ASSERT_EQ(poisson.status, 0) << poisson.err;
  EXPECT_THAT(poisson.out, AllOf(HasSubstr("poisson, 400 requests/s"), HasSubstr("generator's lateness")));
  const Outcome trace =
      run(on_tiny("--prompts text --trace " QUIRE_SOURCE_DIR "/tests/benchmarks/data/mooncake_conversation.jsonl"
                  " --time-scale 0.01 --length-scale 0.005 --max-input-tokens 60 --max-output-tokens 4 --json " +
                      file,
                  ""));
  ASSERT_EQ(trace.status, 0) << trace.err;
  EXPECT_THAT(trace.out, HasSubstr("12 answered, 0 failed"));
  std::istringstream lines(text_of(file));
  std::string first, second, third;
  EXPECT_TRUE(std::getline(lines, first) && std::getline(lines, second));
  EXPECT_FALSE(std::getline(lines, third));
  EXPECT_EQ(json::parse(first).at("parameters").at("max_step_ms"), 50);
  EXPECT_EQ(json::parse(second).at("load").at("kind"), "trace");
}

// Whatever is wrong: a message that names it, a status, and nothing that looks like a result.
TEST(ServeBench, BadInputGivesAMessageAndNoFigure) {
  const std::string backward = testing::TempDir() + "/backward.csv";
  std::ofstream(backward) << "t_s,input_tokens,output_tokens\n5,9,9\n4,9,9\n";
  const std::string results = testing::TempDir() + "/none.jsonl";
  const std::string model = "--model " + tiny_model();
  const struct {
    std::string arguments;
    int status;
    std::string message;
  } cases[] = {
      {"", 2, "give one of --model and --url"},
      {model + " --url http://127.0.0.1:1 --streams 1", 2, "give one of --model and --url"},
      {model, 2, "give one of --streams, --rate and --trace"},
      {model + " --rate 0", 2, "--rate is 0"},
      {model + " --rate -3", 2, "--rate is -3"},
      {model + " --rate nan", 2, "--rate is nan"},
      {model + " --rate 1,0", 2, "--rate is 0"},
      {model + " --rate inf", 2, "--rate is inf"},
      {model + " --rate x", 2, "--rate"},
      {model + " --rate 1e-300", 2, "--rate is 1e-300: 64 requests would take"},
      {model + " --streams 1 --threads -1", 2, "--threads"},
      {model + " --streams 1 --threads 1025", 2, "--threads"},
      {model + " --streams 1 --max-batched-tokens 0", 2, "--max-batched-tokens"},
      {model + " --streams 1 --max-step-ms -1", 2, "--max-step-ms"},
      {model + " --streams 1 --max-running 0", 2, "--max-running"},
      {model + " --streams 1 --block-size 7", 2, "--block-size"},
      {model + " --streams 1 --max-context -1", 2, "--max-context"},
      {model + " --streams 1 --num-requests 99999999999", 2, "--num-requests is 99999999999: it must be at most 10000000"},
      {model + " --streams 1 --warmup 99999999999", 2, "--warmup is 99999999999"},
      {model + " --rate 1 --arrivals burst --burst-size 0", 2, "--burst-size is 0"},
      {model + " --trace x --trace-first-row 0", 2, "--trace-first-row is 0"},
      {model + " --streams 1 --lengths ''", 2, "--lengths: the value is empty"},
      {model + " --streams 1 --json ''", 2, "--json: the value is empty"},
      {"--url '' --streams 1", 2, "--url: the value is empty"},
      {model + " --streams 0", 2, "--streams is 0"},
      {model + " --streams 1 --num-requests 0", 2, "--num-requests is 0"},
      {model + " --streams 1 --num-requests -1", 2, "--num-requests: -1 is below 0"},
      {model + " --streams 1 --warmup -1", 2, "--warmup: -1 is below 0"},
      {model + " --streams 1 --allow-failures -1", 2, "--allow-failures: -1 is below 0"},
      {model + " --streams 1 --trace-first-row -1", 2, "--trace-first-row: -1 is below 0"},
      {model + " --streams 1 --seed -1", 2, "--seed: -1 is below 0"},
      {model + " --streams 1,9 --num-requests 8", 2, "--streams is 9, but --num-requests 8"},
      {model + " --streams 1 --run-timeout-s 0", 2, "--run-timeout-s is 0"},
      {model + " --streams 1 --input-tokens 9:3", 2, "--input-tokens is '9:3'"},
      {model + " --streams 1 --slo-ttft-ms nan", 2, "--slo-ttft-ms is nan"},
      {model + " --streams 1 --device tpu", 2, "--device: 'tpu' is none"},
      {model + " --rate 1 --arrivals never", 2, "--arrivals is 'never'"},
      {model + " --trace x --time-scale 0", 2, "--time-scale is 0"},
      {"--url https://127.0.0.1/v1 --streams 1", 2, "https is not supported"},
      {"--url http://127.0.0.1:1/v1 --streams 1 --prompts text", 2, "--tokenizer"},
      {"--model /no/such/model.gguf --streams 1", 1, "/no/such/model.gguf"},
      {model + " --trace /no/such/trace.csv", 1, "/no/such/trace.csv: No such file"},
      {model + " --trace " + backward, 1, backward + " line 3: its time is 1.000 s before"},
      {model + " --streams 1 --lengths /no/such/lengths.csv", 1, "/no/such/lengths.csv"},
      {model + " --streams 1 --json /no/such/folder/results", 1, "cannot write /no/such/folder/results"},
      {"--url http://127.0.0.1:1/v1 --streams 1", 1, "no connection to 127.0.0.1:1"},
      {model + " --streams 1 --device cuda:4321", 1, "device cuda:4321"},
      {model + " --kv-cache-mib 4 --streams 1 --input-tokens 9999 --json " + results, 1, "refused"},
  };
  for (const auto& [arguments, status, message] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
  }
  EXPECT_EQ(text_of(results), "");
}

TEST(ServeBench, OptionsThatCannotMatterAreRefused) {
  const std::string model = "--model m.gguf ", url = "--url http://127.0.0.1:1/v1 ", chat = "--tokenizer t --endpoint chat ";
  const struct {
    std::string beside;
    std::vector<std::string> options;
    std::string why;
  } cases[] = {
      {url + "--streams 1 ",
       {"--device cpu", "--threads 1", "--max-batched-tokens 9", "--max-step-ms 9", "--max-running 9", "--block-size 16",
        "--max-context 9", "--kv-cache-mib 9", "--no-prefix-cache"},
       "with --url: it is of an engine in this process"},
      {model + "--streams 1 ",
       {"--endpoint completions", "--endpoint chat", "--model-name m", "--tokenizer t", "--vocab-size 999",
        "--connect-timeout-s 9", "--read-timeout-s 9"},
       "with --model: it is of a server"},
      {url + "--streams 1 --tokenizer t ", {"--vocab-size 999"}, "with --tokenizer"},
      {url + "--streams 1 " + chat, {"--prompts text", "--prompts ids"}, "with --endpoint chat"},
      {model + "--streams 1 ", {"--arrivals fixed", "--burst-size 2"}, "without --rate"},
      {model + "--trace t ", {"--arrivals burst", "--burst-size 2"}, "without --rate"},
      {model + "--rate 1 ", {"--burst-size 2"}, "without --arrivals burst"},
      {model + "--rate 1 --arrivals fixed ", {"--burst-size 2"}, "without --arrivals burst"},
      {model + "--rate 1 ", {"--trace-first-row 2", "--time-scale 2", "--length-scale 0.5", "--max-gap-s 9"}, "without --trace"},
      {model + "--trace t ", {"--lengths l", "--input-tokens 9", "--output-tokens 9"}, "with --trace, which has its own lengths"},
      {model + "--streams 1 --lengths l ", {"--input-tokens 9", "--output-tokens 9"}, "with --lengths"},
      {model + "--rate 1 ", {"--max-input-tokens 9", "--max-output-tokens 9"}, "without --trace or --lengths"},
  };
  for (const auto& [beside, options, why] : cases) {
    for (const std::string& option : options) {
      const Outcome outcome = run(beside + option);
      const std::string name = option.substr(0, option.find(' '));
      EXPECT_EQ(outcome.status, 2) << beside << option;
      EXPECT_THAT(outcome.err, HasSubstr("serve_bench: " + name + " does not apply " + why)) << beside << option;
      EXPECT_EQ(outcome.out, "");
    }
  }
}

// And those that can are taken: every one, up to the model or the server that is not there.
TEST(ServeBench, OptionsThatMatterAreTaken) {
  const std::string all =
      " --num-requests 2 --prefix-tokens 4 --temperature 0.5 --stop-at-eos --seed 4 --warmup 0 --slo-ttft-ms 9 --slo-itl-ms 9 "
      "--slo-tpot-ms 9 --slo-e2e-ms 9 --allow-failures 0 --request-timeout-s 9 --run-timeout-s 9 --no-progress";
  const std::string engine =
      "--model /no/model.gguf --device cpu --threads 1 --max-batched-tokens 9 --max-step-ms 9 --max-running 9 --block-size 16 "
      "--max-context 9 --kv-cache-mib 9 --no-prefix-cache --prompts text";
  const std::string server = "--url http://127.0.0.1:1/v1 --model-name m --connect-timeout-s 9 --read-timeout-s 9";
  const std::string data = QUIRE_SOURCE_DIR "/tests/benchmarks/data/", cut = " --max-input-tokens 9 --max-output-tokens 9";
  for (const std::string& load :
       {std::string(" --streams 1,2 --input-tokens 9 --output-tokens 9"),
        " --rate 9 --arrivals burst --burst-size 2 --lengths " + data + "sharegpt_lengths.csv" + cut,
        " --trace " + data + "azure2023_conv.csv --trace-first-row 2 --time-scale 0.5 --length-scale 0.5 --max-gap-s 9" + cut}) {
    EXPECT_THAT(run(engine + load + all).err, HasSubstr("/no/model.gguf")) << load;
    EXPECT_THAT(run(server + " --vocab-size 999 --endpoint completions --prompts ids" + load + all).err,
                HasSubstr("no connection"))
        << load;
    EXPECT_THAT(run(server + " --tokenizer /no/model.gguf --endpoint chat" + load + all).err, HasSubstr("/no/model.gguf"))
        << load;
  }
}

TEST(ServeBench, ListsWithGapsAreRefused) {
  for (const char* list : {"--streams 1,,2", "--streams ,", "--rate 1,", "--rate ,1", "--rate ''"}) {
    const Outcome outcome = run("--model m.gguf " + std::string(list));
    EXPECT_EQ(outcome.status, 2) << list;
    EXPECT_THAT(outcome.err, HasSubstr("has an empty piece")) << list;
  }
}

TEST(ServeBench, AFigureThatCannotBeWrittenIsAFailure) {
  for (const std::string& arguments : {on_tiny("--streams 1"), on_tiny("--streams 1 --json -")}) {
    const std::string command = std::string(QUIRE_SERVE_BENCH) + " " + arguments + " > /dev/full 2> /dev/null";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << arguments;
  }
}

TEST(ServeBench, PlotsAreDrawnOrRefusedBeforeTheRun) {
  const std::string folder = testing::TempDir() + "/plots";
  const std::string arguments = on_tiny("--streams 1,2 --plot " + folder);
  const Outcome refused = run(arguments, "PATH=/no/such/folder ");
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("--plot needs python3"));
  if (std::system("python3 -c 'import matplotlib' 2> /dev/null") != 0) GTEST_SKIP() << "no matplotlib";
  const Outcome drawn = run(arguments);
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  for (const char* name : {"/latency.png", "/tokens.png"}) EXPECT_THAT(text_of(folder + name), StartsWith("\x89PNG")) << name;
}

TEST(ServeBench, FailuresOfAServerCountAgainstTheBudget) {
  std::atomic<int> num_requests{0};
  FakeServer server([&](FakeConnection& connection) {
    if (connection.target == "/v1/models") return connection.send_json(200, R"({"data":[{"id":"tiny"}]})");
    if (++num_requests % 6 == 3) return connection.send_json(503, R"({"error":{"message":"full"}})");
    connection.send_head(200, "text/event-stream");
    connection.send_chunk(text_event("a") + text_event("b") + usage_event(8, 2) + std::string(kDoneEvent));
    connection.send_last_chunk();
  });
  const std::string arguments = "--url " + server.url() + " --streams 2 --num-requests 12 --input-tokens 8 --output-tokens 2 ";
  const Outcome strict = run(arguments + "--warmup 0");
  EXPECT_EQ(strict.status, 1);
  EXPECT_EQ(strict.out, "");
  EXPECT_THAT(strict.err, AllOf(HasSubstr("no figures"), HasSubstr("1 x http_503: status 503: 'full'")));
  num_requests = 0;
  const Outcome lenient = run(arguments + "--warmup 0 --allow-failures 2");
  EXPECT_EQ(lenient.status, 0) << lenient.err;
  EXPECT_THAT(lenient.out, HasSubstr("10 answered, 2 failed"));
  EXPECT_THAT(lenient.err, HasSubstr("2 x http_503"));
  num_requests = 2;
  const Outcome warmup = run(arguments + "--warmup 1");
  EXPECT_EQ(warmup.status, 1);
  EXPECT_THAT(warmup.err, HasSubstr("warm-up: no figures"));
}

// It sends a token now and then, forever: a request's limit ends it, or the run's where failures are allowed.
TEST(ServeBench, AServerThatNeverEndsGivesNoFigure) {
  FakeServer server([](FakeConnection& connection) {
    connection.send_head(200, "text/event-stream");
    while (connection.is_open()) {
      connection.send_chunk(text_event("a"));
      connection.pause(20);
    }
  });
  const std::string arguments =
      "--url " + server.url() +
      " --model-name m --streams 2 --num-requests 60 --input-tokens 8 --output-tokens 10000 --warmup 0 ";
  const auto expect_failure = [&](const std::string& limits, const std::string& message) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = run(arguments + limits);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << limits;
    EXPECT_EQ(outcome.status, 1) << limits;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("closed loop of 2 streams: no figures"), HasSubstr(message)));
  };
  expect_failure("--request-timeout-s 1", "did not end in time, reading the answer");
  expect_failure("--run-timeout-s 1", "not over 1 s (--run-timeout-s) after the last arrival: 2 of 60 requests were sent");
  expect_failure("--request-timeout-s 0.3 --run-timeout-s 0.8 --allow-failures 100", "--run-timeout-s");
}

}  // namespace
}  // namespace quire::test
