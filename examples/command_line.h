// parse_command_line: CLI11 with the exit statuses of all programs here: 0 after help, 2 for a wrong command line (1 is left to
// what goes wrong later).
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

// For every option that is an unsigned number: CLI11 takes -1 for the largest one.
inline CLI::Validator unsigned_number() {
  const auto refuse = [](std::string& text) { return text.starts_with('-') ? text + " is below 0" : std::string(); };
  return CLI::Validator(refuse, "");
}

// In the order in which they were given: CLI11 turns them round, here too.
inline CLI::ExtrasError unknown_arguments(const CLI::App& app) {
  std::vector<std::string> arguments = app.remaining();
  std::reverse(arguments.begin(), arguments.end());
  return CLI::ExtrasError(arguments);
}

// The status to end with, if the command line says so.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::RequiredError& error) {  // which may be there, misspelt
    app.remaining_size() == 0 ? app.exit(error) : app.exit(unknown_arguments(app));
    return 2;
  } catch (const CLI::ExtrasError&) {
    app.exit(unknown_arguments(app));
    return 2;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
}
