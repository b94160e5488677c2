// Files of JSON objects, one a line, as benchmarks read them. Whatever is wrong is told with file and line, the field, what
// stands there and what was expected: "prompts.jsonl:7: output_tokens is "9", expected a whole number from 1 to 1048576".
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

// Calls `read` with each line but empty ones; what it throws gets file and line in front. `what` is the file in messages ("data
// set"). Throws std::runtime_error, also if there is no line.
void read_json_lines(const std::string& path, std::string_view what, const std::function<void(const boost::json::object&)>& read);

// Fields of a line, which must be there. Throw std::runtime_error.
std::string text_field(const boost::json::object& line, std::string_view name);
double number_field(const boost::json::object& line, std::string_view name);
std::int32_t whole_field(const boost::json::object& line, std::string_view name, std::int32_t least, std::int32_t most);
const boost::json::array& list_field(const boost::json::object& line, std::string_view name);
std::vector<std::int32_t> ids_field(const boost::json::object& line, std::string_view name);  // of tokens: from 0 on
std::vector<double> numbers_field(const boost::json::object& line, std::string_view name);

}  // namespace quire::bench
