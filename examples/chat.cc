// A dialogue in the terminal: `chat --model FILE`. Keeps the history, streams the answer, and says after each turn how much of
// the prompt came from the prefix cache. `--once QUESTION` answers one question and prints what it took.
#include <quire/engine.h>
#include <quire/error.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct ChatOptions {
  std::string model;
  std::string system;
  std::string once;
  int threads = 0;
  int max_tokens = 256;
  float temperature = 0.7f;
};

struct Turn {
  std::string answer;
  quire::Usage usage;
  quire::EngineStats stats;  // the last ones before the sequence was released
  double first_token_s = 0;  // from submit() to the first token
  double last_token_s = 0;   // from submit() to the last
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Asks the engine and prints the answer as it comes.
Turn answer(quire::Engine& engine, const quire::ChatTemplate& chat_template, const std::vector<quire::ChatMessage>& messages,
            const ChatOptions& options) {
  quire::Request request;
  request.prompt = chat_template.encode(messages);
  request.sampling.temperature = options.temperature;
  request.sampling.max_tokens = options.max_tokens;

  Turn turn;
  const Clock::time_point start = Clock::now();
  engine.submit(std::move(request));
  while (engine.has_work()) {
    for (const quire::TokenEvent& event : engine.step()) {
      if (event.finish_reason == quire::FinishReason::kError) throw quire::Error(quire::ErrorCode::kInternal, event.error);
      if (event.token >= 0) {
        turn.last_token_s = seconds_since(start);
        if (turn.first_token_s == 0) turn.first_token_s = turn.last_token_s;
      }
      std::cout << event.text << std::flush;
      turn.answer += event.text;
      turn.usage = event.usage;
    }
    if (const quire::EngineStats stats = engine.stats(); stats.held_blocks > 0) turn.stats = stats;
  }
  std::cout << "\n";
  return turn;
}

double ratio(double numerator, double denominator) { return denominator > 0 ? numerator / denominator : 0; }

void print_numbers(const Turn& turn) {
  const quire::EngineStats& stats = turn.stats;
  const int computed = turn.usage.prompt_tokens - turn.usage.cached_tokens;
  const double waste = 1 - ratio(static_cast<double>(stats.written_token_slots), static_cast<double>(stats.held_token_slots));
  std::printf("\n");
  std::printf("time to first token  %8.1f ms\n", turn.first_token_s * 1e3);
  std::printf("prefill              %8.1f tokens/s  (%d tokens)\n", ratio(computed, turn.first_token_s), computed);
  std::printf("decode               %8.1f tokens/s  (%d tokens)\n",
              ratio(turn.usage.completion_tokens - 1, turn.last_token_s - turn.first_token_s), turn.usage.completion_tokens);
  std::printf("KV blocks            %8lld of %lld\n", static_cast<long long>(stats.held_blocks),
              static_cast<long long>(stats.total_blocks));
  std::printf("KV waste             %8.1f %%\n", stats.held_token_slots > 0 ? waste * 100 : 0.0);
  std::printf("kernels              %8s\n", stats.cpu_isa.c_str());
}

// One line from standard input. False at its end.
bool read_line(std::string& line) {
  if (isatty(STDIN_FILENO) != 0) std::cout << "> " << std::flush;
  return static_cast<bool>(std::getline(std::cin, line));
}

void run(const ChatOptions& options) {
  quire::EngineOptions engine_options;
  engine_options.num_threads = options.threads;
  quire::Engine engine(options.model, engine_options);
  const quire::ChatTemplate chat_template(engine.tokenizer());
  std::vector<quire::ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});

  if (!options.once.empty()) {
    messages.push_back({"user", options.once});
    print_numbers(answer(engine, chat_template, messages, options));
    return;
  }
  for (std::string line; read_line(line);) {
    if (line.empty()) continue;
    messages.push_back({"user", line});
    const Turn turn = answer(engine, chat_template, messages, options);
    messages.push_back({"assistant", turn.answer});
    std::printf("[%d prompt tokens, %d of them cached; %d generated]\n\n", turn.usage.prompt_tokens, turn.usage.cached_tokens,
                turn.usage.completion_tokens);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ChatOptions options;
  CLI::App app("Talk to a model. Reads lines from standard input until its end.");
  app.add_option("--model", options.model, "GGUF file, or folder with safetensors")->required();
  app.add_option("--system", options.system, "system prompt");
  app.add_option("--once", options.once, "answer this question, print the numbers, and end");
  app.add_option("--threads", options.threads, "CPU threads; 0: all cores");
  app.add_option("--temperature", options.temperature, "0: always the likeliest token")->capture_default_str();
  app.add_option("--max-tokens", options.max_tokens, "most tokens of one answer")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::cerr << "chat: " << error.what() << "\n";
    return 1;
  }
}
