// A dialogue in the terminal: `chat --model FILE`. Keeps the history, streams the answer, and says after each turn how much of
// the prompt came from the prefix cache. A dialogue that outgrows the context loses its oldest turns, never the system prompt.
// `--once QUESTION` answers one question and prints what it took.
#include <quire/engine.h>
#include <quire/error.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"

namespace {

using Clock = std::chrono::steady_clock;

struct ChatOptions {
  std::string model;
  std::string system;
  std::string once;
  int threads = 0;
  int max_context = 0;
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

// The beginning of a text, on one line.
std::string excerpt(const std::string& text) {
  constexpr std::size_t kMaxBytes = 40;
  std::size_t end = std::min(text.size(), kMaxBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  std::string out = text.substr(0, end);
  std::replace(out.begin(), out.end(), '\n', ' ');
  return end < text.size() ? out + "..." : out;
}

// What has been said: the system prompt, if any, then questions and answers in turn.
struct Dialogue {
  std::vector<quire::ChatMessage> system;
  std::vector<quire::ChatMessage> turns;
};

std::vector<quire::TokenId> encode(const quire::ChatTemplate& chat_template, const Dialogue& dialogue) {
  std::vector<quire::ChatMessage> messages = dialogue.system;
  messages.insert(messages.end(), dialogue.turns.begin(), dialogue.turns.end());
  return chat_template.encode(messages);
}

// The prompt that ends with `question`. When no room for an answer is left, the oldest turns go: down to half of the context, so
// that the prefix cache serves the turns that follow. Throws, and changes nothing, if the question alone is too long.
std::vector<quire::TokenId> prompt_for(const std::string& question, const quire::Engine& engine,
                                       const quire::ChatTemplate& chat_template, int max_tokens, Dialogue& dialogue) {
  const auto context = static_cast<std::size_t>(engine.max_context());
  const std::size_t answer_room = std::min(static_cast<std::size_t>(max_tokens), context / 4);
  Dialogue alone{dialogue.system, {{"user", question}}};
  if (const std::size_t size = encode(chat_template, alone).size(); size >= context) {
    throw quire::Error(quire::ErrorCode::kInvalidArgument, "the question \"" + excerpt(question) + "\" makes a prompt of " +
                                                               std::to_string(size) + " tokens; the context holds " +
                                                               std::to_string(context));
  }
  dialogue.turns.push_back({"user", question});
  std::vector<quire::TokenId> prompt = encode(chat_template, dialogue);
  if (prompt.size() + answer_room <= context) return prompt;
  int num_forgotten = 0;
  while (dialogue.turns.size() > 1 && prompt.size() > context / 2) {
    dialogue.turns.erase(dialogue.turns.begin(), dialogue.turns.begin() + 2);  // a question and its answer
    prompt = encode(chat_template, dialogue);
    ++num_forgotten;
  }
  if (num_forgotten > 0) {
    std::printf("[the context of %zu tokens is full: turns forgotten: %d]\n", context, num_forgotten);
    std::fflush(stdout);
  }
  return prompt;
}

// Asks the engine and prints the answer as it comes.
Turn answer(quire::Engine& engine, std::vector<quire::TokenId> prompt, const ChatOptions& options) {
  quire::Request request;
  request.prompt = std::move(prompt);
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

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

// One line from standard input. False at its end.
bool read_line(std::string& line) {
  if (isatty(STDIN_FILENO) != 0) std::cout << "> " << std::flush;
  return static_cast<bool>(std::getline(std::cin, line));
}

// Answers the lines of standard input, each with the dialogue before it.
void converse(quire::Engine& engine, const quire::ChatTemplate& chat_template, Dialogue& dialogue, const ChatOptions& options) {
  for (std::string line; read_line(line);) {
    if (is_blank(line)) continue;
    std::vector<quire::TokenId> prompt;
    try {
      prompt = prompt_for(line, engine, chat_template, options.max_tokens, dialogue);
    } catch (const quire::Error& error) {
      if (error.code() != quire::ErrorCode::kInvalidArgument) throw;
      std::cerr << "chat: " << error.what() << "\n";
      continue;
    }
    const Turn turn = answer(engine, std::move(prompt), options);
    dialogue.turns.push_back({"assistant", turn.answer});
    std::printf("[%d prompt tokens, %d of them cached; %d generated]\n\n", turn.usage.prompt_tokens, turn.usage.cached_tokens,
                turn.usage.completion_tokens);
    std::fflush(stdout);
  }
}

void run(const ChatOptions& options) {
  quire::EngineOptions engine_options;
  engine_options.num_threads = options.threads;
  engine_options.max_context = options.max_context;
  quire::Engine engine(options.model, engine_options);
  const quire::ChatTemplate chat_template(engine.tokenizer());
  Dialogue dialogue;
  if (!options.system.empty()) dialogue.system.push_back({"system", options.system});
  if (options.once.empty()) return converse(engine, chat_template, dialogue, options);
  print_numbers(answer(engine, prompt_for(options.once, engine, chat_template, options.max_tokens, dialogue), options));
}

}  // namespace

int main(int argc, char** argv) try {
  ChatOptions options;
  CLI::App app("Talk to a model. Reads lines from standard input until its end.");
  const auto is_text = [](const std::string& text) { return std::string(is_blank(text) ? "the question is empty" : ""); };
  app.add_option("--model", options.model, "GGUF file, or folder with safetensors")->required();
  app.add_option("--system", options.system, "system prompt");
  app.add_option("--once", options.once, "answer this question, print the numbers, and end")->check(is_text);
  app.add_option("--threads", options.threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1024));
  app.add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0f, 100.0f));
  app.add_option("--max-context", options.max_context, "tokens of the whole dialogue; 0: what the model takes")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--max-tokens", options.max_tokens, "most tokens of one answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  if (const auto status = parse_command_line(app, argc, argv)) return *status;
  run(options);
} catch (const std::exception& error) {
  std::fflush(stdout);
  std::cerr << "chat: " << error.what() << "\n";
  return 1;
}
