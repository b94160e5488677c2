// parse_strict_json: JSON of a model's files, refusing what Boost.JSON lets pass: duplicate keys (it keeps the last) and deep
// nesting. Throws Error(kInvalidFile) naming the file and the place.
#pragma once

#include <boost/json/value.hpp>

#include <string_view>

namespace quire {

// `file` stands in messages.
boost::json::value parse_strict_json(std::string_view text, std::string_view file);

}  // namespace quire
