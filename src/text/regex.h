// Regex: a compiled Oniguruma pattern. Oniguruma is what Hugging Face's tokenizers runs, so its patterns mean here what they
// mean there. Compiled once, searched by any number of threads; giving up is an error, never a shorter match.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

struct Span {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;
};

class Regex {
 public:
  // Throws Error(kUnsupported) naming `element` if Oniguruma does not take the pattern.
  Regex(std::string_view pattern, std::string_view element);

  // The matches in `text`, left to right; of empty ones those that do not follow another match. REQUIRES: valid UTF-8.
  // Throws Error(kInvalidArgument) if Oniguruma gives up (its limits on backtracking).
  std::vector<Span> find_all(std::string_view text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace quire::text
