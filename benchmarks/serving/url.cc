#include "benchmarks/serving/url.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>

#include "benchmarks/serving/printable.h"

namespace quire::bench {
namespace {

[[noreturn]] void reject(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("url is {}: {}; give it as http://127.0.0.1:8080/v1", printable(text), why));
}

std::string parse_port(std::string_view text, std::string_view port) {
  const bool is_number =
      !port.empty() && port.size() <= 5 && std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int value = is_number ? std::stoi(std::string(port)) : 0;
  if (value < 1 || value > 65535) reject(text, "its port is not from 1 to 65535");
  return std::to_string(value);
}

}  // namespace

std::string Url::authority() const { return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port; }

Url parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://"))
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("url is {}: https is not supported, only http (measure behind the proxy, not through it)", printable(text)));
  if (!text.starts_with(kScheme)) reject(text, "it does not begin with http://");
  const auto is_plain = [](char c) { return c > 0x20 && c < 0x7F && c != '"' && c != '<' && c != '>' && c != '\\'; };
  if (!std::all_of(text.begin(), text.end(), is_plain)) reject(text, "it holds a character that no address has");
  if (text.find_first_of("?#@") != std::string_view::npos) reject(text, "user, query and fragment have no place in it");
  std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  Url url;
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) reject(text, "a bracket is open");
    url.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
    if (!authority.empty() && authority.front() != ':') reject(text, "a colon must follow the bracket");
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (url.host.empty()) reject(text, "it names no host");
  if (!authority.empty()) url.port = parse_port(text, authority.substr(1));
  return url;
}

}  // namespace quire::bench
