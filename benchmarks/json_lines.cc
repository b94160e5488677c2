#include "benchmarks/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kShown = 40;  // characters of what is wrong

std::string shown(std::string_view text) {
  return fmt::format("{}{}", text.substr(0, kShown), text.size() > kShown ? "..." : "");
}

[[noreturn]] void reject(std::string_view name, const json::value& value, std::string_view expected) {
  throw std::runtime_error(fmt::format("{} is {}, expected {}", name, shown(json::serialize(value)), expected));
}

const json::value& field(const json::object& line, std::string_view name, std::string_view expected) {
  if (const json::value* value = line.if_contains(name)) return *value;
  throw std::runtime_error(fmt::format("there is no {}, expected {}", name, expected));
}

std::optional<std::int32_t> whole(const json::value& value, std::int32_t least, std::int32_t most) {
  const std::int64_t* number = value.if_int64();
  if (number == nullptr || *number < least || *number > most) return std::nullopt;
  return static_cast<std::int32_t>(*number);
}

json::object parse_line(const std::string& line) {
  json::error_code error;
  json::value value = json::parse(line, error);
  if (error) throw std::runtime_error(fmt::format("{}, expected a JSON object: {}", error.message(), shown(line)));
  if (!value.is_object()) throw std::runtime_error(fmt::format("the line is {}, expected a JSON object", shown(line)));
  return std::move(value.get_object());
}

}  // namespace

void read_json_lines(const std::string& path, std::string_view what, const std::function<void(const json::object&)>& read) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw std::runtime_error(fmt::format("the {} {} is a folder", what, path));
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("cannot read the {} {}: {}", what, path, std::strerror(errno)));
  int line_number = 0;
  bool is_empty = true;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    is_empty = false;
    try {
      read(parse_line(line));
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", path, line_number, error.what()));
    }
  }
  if (file.bad()) throw std::runtime_error(fmt::format("cannot read the {} {}: {}", what, path, std::strerror(errno)));
  if (is_empty) throw std::runtime_error(fmt::format("the {} {} is empty", what, path));
}

std::string text_field(const json::object& line, std::string_view name) {
  constexpr std::string_view kExpected = "a text";
  const json::value& value = field(line, name, kExpected);
  if (!value.is_string()) reject(name, value, kExpected);
  return std::string(value.get_string());
}

double number_field(const json::object& line, std::string_view name) {
  constexpr std::string_view kExpected = "a number";
  const json::value& value = field(line, name, kExpected);
  if (!value.is_number()) reject(name, value, kExpected);
  return value.to_number<double>();
}

std::int32_t whole_field(const json::object& line, std::string_view name, std::int32_t least, std::int32_t most) {
  const std::string expected = fmt::format("a whole number from {} to {}", least, most);
  const json::value& value = field(line, name, expected);
  const std::optional<std::int32_t> number = whole(value, least, most);
  if (!number) reject(name, value, expected);
  return *number;
}

const json::array& list_field(const json::object& line, std::string_view name) {
  constexpr std::string_view kExpected = "a list";
  const json::value& value = field(line, name, kExpected);
  if (!value.is_array()) reject(name, value, kExpected);
  return value.get_array();
}

std::vector<std::int32_t> ids_field(const json::object& line, std::string_view name) {
  std::vector<std::int32_t> ids;
  for (const json::value& value : list_field(line, name)) {
    const std::optional<std::int32_t> id = whole(value, 0, std::numeric_limits<std::int32_t>::max());
    if (!id) reject(fmt::format("{}[{}]", name, ids.size()), value, "a token's id");
    ids.push_back(*id);
  }
  return ids;
}

std::vector<double> numbers_field(const json::object& line, std::string_view name) {
  std::vector<double> numbers;
  for (const json::value& value : list_field(line, name)) {
    if (!value.is_number()) reject(fmt::format("{}[{}]", name, numbers.size()), value, "a number");
    numbers.push_back(value.to_number<double>());
  }
  return numbers;
}

}  // namespace quire::bench
