// JsonElement: a value of a parsed JSON text that knows its path, so that every refusal names the element
// ("tokenizer.json: model.merges[3]: ..."). The parser is Boost.JSON, with bounds on size and depth and no duplicate keys.
#pragma once

#include <boost/json/value.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/check.h"

namespace quire::text {

// Throws Error(kInvalidFile). `name` stands at the start of every message.
boost::json::value parse_json(std::string_view text, std::string_view name);

class JsonElement {
 public:
  // `value` must outlive the element and all that come from it.
  JsonElement(const boost::json::value& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  bool is_string() const { return value_->is_string(); }
  bool is_array() const { return value_->is_array(); }

  // All of these throw Error(kInvalidFile) if the value is of another kind.
  const boost::json::object& object() const;
  const boost::json::array& array() const;
  std::string_view string() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;

  JsonElement at(std::string_view key) const;                   // of an object; must be there
  std::optional<JsonElement> find(std::string_view key) const;  // of an object; none if absent or null
  JsonElement at(std::size_t index) const;                      // of an array
  std::string_view string_at(std::string_view key) const { return at(key).string(); }
  bool boolean_at(std::string_view key, bool otherwise) const;

  template <typename... Args>
  [[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(code, path_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  [[noreturn]] void invalid(fmt::format_string<Args...> format, Args&&... args) const {
    refuse(ErrorCode::kInvalidFile, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  [[noreturn]] void unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    refuse(ErrorCode::kUnsupported, format, std::forward<Args>(args)...);
  }

 private:
  [[noreturn]] void wrong_kind(std::string_view expected) const;

  const boost::json::value* value_;
  std::string path_;
};

}  // namespace quire::text
