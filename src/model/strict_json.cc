#include "model/strict_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>

#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/check.h"

namespace quire {
namespace {

constexpr std::size_t kMaxDepth = 32;

// Events of boost::json::basic_parser: values go to a value_stack as in Boost's own parser, keys also to one set per open object.
class StrictHandler {
 public:
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_key_size = 65'536;
  static constexpr std::size_t max_string_size = std::numeric_limits<std::size_t>::max();
  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;

  boost::json::value release() { return stack_.release(); }
  const std::string& duplicate_key() const { return duplicate_key_; }

  bool on_document_begin(error_code&) {
    stack_.reset();
    return true;
  }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t n, error_code&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t n, error_code&) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(string_view s, std::size_t, error_code&) {
    key_.append(s.data(), s.size());
    stack_.push_chars(s);
    return true;
  }
  bool on_key(string_view s, std::size_t, error_code& error) {
    key_.append(s.data(), s.size());
    stack_.push_key(s);
    if (!keys_.back().insert(key_).second) {
      duplicate_key_ = key_;
      error = boost::json::make_error_code(boost::json::error::syntax);
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(string_view s, std::size_t, error_code&) {
    stack_.push_chars(s);
    return true;
  }
  bool on_string(string_view s, std::size_t, error_code&) {
    stack_.push_string(s);
    return true;
  }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t i, string_view, error_code&) {
    stack_.push_int64(i);
    return true;
  }
  bool on_uint64(std::uint64_t u, string_view, error_code&) {
    stack_.push_uint64(u);
    return true;
  }
  bool on_double(double d, string_view, error_code&) {
    stack_.push_double(d);
    return true;
  }
  bool on_bool(bool b, error_code&) {
    stack_.push_bool(b);
    return true;
  }
  bool on_null(error_code&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  boost::json::value_stack stack_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open, outermost first
  std::string key_;                                    // the one being read
  std::string duplicate_key_;
};

}  // namespace

boost::json::value parse_strict_json(std::string_view text, std::string_view file) {
  boost::json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::json::basic_parser<StrictHandler> parser(options);
  boost::json::error_code error;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (!parser.handler().duplicate_key().empty()) {
    fail(ErrorCode::kInvalidFile, "{}: key '{}' occurs twice in an object", file, parser.handler().duplicate_key());
  }
  if (error) fail(ErrorCode::kInvalidFile, "{}: not valid JSON near byte {}: {}", file, used, error.message());
  if (text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) {
    fail(ErrorCode::kInvalidFile, "{}: text after the JSON value, at byte {}", file, used);
  }
  return parser.handler().release();
}

}  // namespace quire
