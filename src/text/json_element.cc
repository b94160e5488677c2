#include "text/json_element.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <unordered_set>
#include <vector>

#include "core/check.h"

namespace quire::text {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 28;
constexpr std::size_t kMaxDepth = 64;

// Sees every key once. Boost.JSON's own objects keep the last of equal keys, and say nothing.
class DuplicateKeys {
 public:
  static constexpr std::size_t max_object_size = ~std::size_t{0};
  static constexpr std::size_t max_array_size = ~std::size_t{0};
  static constexpr std::size_t max_key_size = ~std::size_t{0};
  static constexpr std::size_t max_string_size = ~std::size_t{0};

  std::optional<std::string> duplicate;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t, json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, json::error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view rest, std::size_t, json::error_code&) {
    key_.append(rest.data(), rest.size());
    if (!keys_.back().insert(key_).second && !duplicate) duplicate = key_;
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects
  std::string key_;
};

}  // namespace

json::value parse_json(std::string_view text, std::string_view name) {
  if (text.size() > kMaxJsonBytes) {
    fail(ErrorCode::kInvalidFile, "{}: {} bytes; at most {} are read", name, text.size(), kMaxJsonBytes);
  }
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::basic_parser<DuplicateKeys> keys(options);
  const std::size_t read = keys.write_some(false, text.data(), text.size(), error);
  if (error) fail(ErrorCode::kInvalidFile, "{}: not valid JSON at byte {}: {}", name, read, error.message());
  if (keys.handler().duplicate) fail(ErrorCode::kInvalidFile, "{}: the key \"{}\" occurs twice", name, *keys.handler().duplicate);
  json::value value = json::parse(json::string_view(text.data(), text.size()), error, {}, options);
  if (error) fail(ErrorCode::kInvalidFile, "{}: not valid JSON: {}", name, error.message());
  return value;
}

void JsonElement::wrong_kind(std::string_view expected) const {
  std::string text =
      value_->is_structured() ? std::string(value_->is_object() ? "an object" : "an array") : json::serialize(*value_);
  if (text.size() > 64) text = text.substr(0, 61) + "...";
  invalid("expected {}, found {}", expected, text);
}

const json::object& JsonElement::object() const {
  if (!value_->is_object()) wrong_kind("an object");
  return value_->get_object();
}

const json::array& JsonElement::array() const {
  if (!value_->is_array()) wrong_kind("an array");
  return value_->get_array();
}

std::string_view JsonElement::string() const {
  if (!value_->is_string()) wrong_kind("a string");
  const json::string& s = value_->get_string();
  return {s.data(), s.size()};
}

bool JsonElement::boolean() const {
  if (!value_->is_bool()) wrong_kind("true or false");
  return value_->get_bool();
}

std::int64_t JsonElement::integer(std::int64_t low, std::int64_t high) const {
  if (!value_->is_int64()) wrong_kind("an integer");
  const std::int64_t i = value_->get_int64();
  if (i < low || i > high) invalid("{} is not in [{}, {}]", i, low, high);
  return i;
}

JsonElement JsonElement::at(std::string_view key) const {
  const json::value* value = object().if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr) invalid("\"{}\" is missing", key);
  return {*value, path_ + "." + std::string(key)};
}

std::optional<JsonElement> JsonElement::find(std::string_view key) const {
  const json::value* value = object().if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr || value->is_null()) return std::nullopt;
  return JsonElement(*value, path_ + "." + std::string(key));
}

JsonElement JsonElement::at(std::size_t index) const {
  const json::array& a = array();
  if (index >= a.size()) invalid("has {} elements; element {} is missing", a.size(), index);
  return {a[index], path_ + "[" + std::to_string(index) + "]"};
}

bool JsonElement::boolean_at(std::string_view key, bool otherwise) const {
  const auto element = find(key);
  return element ? element->boolean() : otherwise;
}

}  // namespace quire::text
