// Normalizer: what a model does to text before it is cut: NFC, replacing, prepending. Immutable; any number of threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quire::text {

// Unicode normalisation form C, in linear time also for long runs of combining marks. REQUIRES: valid UTF-8.
std::string nfc(std::string_view text);

class Normalizer {
 public:
  void add_nfc() { steps_.emplace_back(Nfc{}); }
  void add_prepend(std::string prefix) { steps_.emplace_back(Prepend{std::move(prefix)}); }
  void add_replace(std::string from, std::string to) { steps_.emplace_back(Replace{std::move(from), {}, std::move(to)}); }
  void add_replace(Regex from, std::string to) { steps_.emplace_back(Replace{{}, std::move(from), std::move(to)}); }

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  struct Nfc {};
  struct Prepend {  // to what is not empty
    std::string prefix;
  };
  struct Replace {
    std::string from;  // or
    std::optional<Regex> pattern;
    std::string to;
  };
  std::vector<std::variant<Nfc, Prepend, Replace>> steps_;
};

}  // namespace quire::text
