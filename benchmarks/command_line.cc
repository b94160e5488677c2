#include "benchmarks/command_line.h"

#include "examples/command_line.h"

namespace quire::bench {

std::optional<int> parse_flags(CLI::App& app, int argc, char** argv) {
  if (const std::optional<int> status = parse_command_line(app, argc, argv)) return status;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (!value.empty()) continue;
      app.exit(CLI::ValidationError(option->get_name(), "the value is empty"));
      return 2;
    }
  }
  return std::nullopt;
}

std::vector<std::string> split_list(const std::string& text, const std::string& option) {
  std::vector<std::string> pieces{""};
  for (const char c : text) {
    if (c == ',') {
      pieces.emplace_back();
    } else {
      pieces.back() += c;
    }
  }
  for (const std::string& piece : pieces)
    if (piece.empty()) throw CLI::ValidationError(option, fmt::format("'{}' has an empty piece", text));
  return pieces;
}

std::string given_in_vain(const CLI::App& app, std::initializer_list<Idle> rules) {
  for (const Idle& rule : rules) {
    if (!rule.when) continue;
    for (const std::string& option : rule.options)
      if (app.count(option) > 0) return fmt::format("{} does not apply {}", option, rule.why);
  }
  return "";
}

}  // namespace quire::bench
