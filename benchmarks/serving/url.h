// The address of an OpenAI endpoint, "http://127.0.0.1:8080/v1".
#pragma once

#include <string>
#include <string_view>

namespace quire::bench {

struct Url {
  std::string host = {};  // without the brackets of an IPv6 address
  std::string port = "80";
  std::string path = {};          // "" or "/v1": begins with '/', does not end with it
  std::string authority() const;  // as the Host field has it: "127.0.0.1:8080"
};

// Throws Error(kUnsupported) for https, Error(kInvalidArgument) for what is no http address, naming `text`.
Url parse_url(std::string_view text);

}  // namespace quire::bench
