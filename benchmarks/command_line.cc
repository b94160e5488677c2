#include "benchmarks/command_line.h"

#include <charconv>

#include "examples/command_line.h"

namespace quire::bench {
namespace {

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kPrefix)) {
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  if (index < 0) throw CLI::ValidationError("--device", fmt::format("'{}' is none: give cpu, cuda or cuda:N", text));
  return {DeviceKind::kCuda, index};
}

}  // namespace

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

CLI::Option* add_device(CLI::App& app, Device& device) {
  const auto parse = [&device](const std::string& text) { device = parse_device(text); };
  return app.add_option_function<std::string>("--device", parse, "cpu, cuda or cuda:N")->default_str(to_string(device));
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
