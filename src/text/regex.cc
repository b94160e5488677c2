#include "text/regex.h"

#include <oniguruma.h>

#include <mutex>
#include <optional>

#include "core/check.h"
#include "core/utf8.h"

namespace quire::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 14;
constexpr unsigned long kMaxRetries = 100'000'000;  // of one search: about a second
constexpr unsigned kMaxStack = 1 << 22;             // entries of the match stack

// Some codes' texts quote the pattern, and read `info` without asking whether it is there.
std::string error_text(int code, OnigErrorInfo info = {ONIG_ENCODING_UTF8, nullptr, nullptr}) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(buffer, code, &info);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length));
}

const OnigUChar* as_onig(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

struct RegionDeleter {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct ParamDeleter {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

}  // namespace

struct Regex::Compiled {
  regex_t* regex = nullptr;
  std::string element;
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Regex::Regex(std::string_view pattern, std::string_view element) {
  initialize_once();
  if (pattern.size() > kMaxPatternBytes) {
    fail(ErrorCode::kUnsupported, "{}: a pattern of {} bytes; at most {} are taken", element, pattern.size(), kMaxPatternBytes);
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->element = element;
  OnigErrorInfo info = {ONIG_ENCODING_UTF8, nullptr, nullptr};
  const int code = onig_new(&compiled->regex, as_onig(pattern.data()), as_onig(pattern.data() + pattern.size()), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) fail(ErrorCode::kUnsupported, "{}: pattern \"{}\": {}", element, pattern, error_text(code, info));
  compiled_ = std::move(compiled);
}

std::vector<Span> Regex::find_all(std::string_view text) const {
  const std::unique_ptr<OnigRegion, RegionDeleter> region(onig_region_new());
  const std::unique_ptr<OnigMatchParam, ParamDeleter> param(onig_new_match_param());
  QUIRE_CHECK(region != nullptr && param != nullptr);
  onig_initialize_match_param(param.get());
  onig_set_retry_limit_in_match_of_match_param(param.get(), kMaxRetries);
  onig_set_retry_limit_in_search_of_match_param(param.get(), kMaxRetries);
  onig_set_match_stack_limit_size_of_match_param(param.get(), kMaxStack);

  std::vector<Span> matches;
  const OnigUChar* begin = as_onig(text.data());
  const OnigUChar* end = begin + text.size();
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const int at =
        onig_search_with_param(compiled_->regex, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE, param.get());
    if (at == ONIG_MISMATCH) break;
    if (at < 0) {
      fail(ErrorCode::kInvalidArgument, "{}: the pattern gave up at byte {} of a text of {} bytes: {}", compiled_->element, from,
           text.size(), error_text(at));
    }
    const Span match{static_cast<std::size_t>(region->beg[0]), static_cast<std::size_t>(region->end[0])};
    if (match.end == match.begin && match.end == last_end) {
      from += from < text.size() ? decode_utf8(text.substr(from)).length : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
    last_end = match.end;
  }
  return matches;
}

}  // namespace quire::text
