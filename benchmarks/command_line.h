// What the command lines of the benchmarks share beyond examples/command_line.h: devices, no empty values, lists without gaps,
// and the refusal of options that could not matter.
#pragma once

#include <fmt/format.h>
#include <quire/engine.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

// parse_command_line, which also refuses the empty value of an option: a variable of the shell that was meant to be set, most
// often.
std::optional<int> parse_flags(CLI::App& app, int argc, char** argv);

// The tokens that a KV block may have (EngineOptions::block_size).
inline CLI::IsMember a_block_size() { return CLI::IsMember({8, 16, 32, 64, 128, 256}); }

// --device cpu, cuda or cuda:N; what stands in `device` is the default.
CLI::Option* add_device(CLI::App& app, Device& device);

// The pieces of "1,8,32". Throws CLI::ValidationError naming the option if one of them is empty.
std::vector<std::string> split_list(const std::string& text, const std::string& option);

// An option whose value is such a list; `wrong` gives the message for a piece that it does not accept. What stands in `values` is
// the default.
template <typename T>
CLI::Option* add_list(CLI::App& app, const std::string& option, std::vector<T>& values, const std::string& description,
                      const std::function<std::string(const std::string&)>& wrong = {}) {
  const auto parse = [&values, option, wrong](const std::string& text) {
    std::vector<T> parsed;
    for (const std::string& piece : split_list(text, option)) {
      if (const std::string message = wrong ? wrong(piece) : ""; !message.empty()) throw CLI::ValidationError(option, message);
      if (!CLI::detail::lexical_cast(piece, parsed.emplace_back())) throw CLI::ConversionError(piece, option);
    }
    values = std::move(parsed);
  };
  return app.add_option_function<std::string>(option, parse, description)
      ->type_name("N,N,...")
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

// Options that cannot change what a program does, if `when` holds; `why` goes on from "--name does not apply".
struct Idle {
  bool when = false;
  std::string_view why = {};
  std::vector<std::string> options = {};
};
// What is wrong with the first of them that the command line gave all the same; empty: none was given.
std::string given_in_vain(const CLI::App& app, std::initializer_list<Idle> rules);

}  // namespace quire::bench
