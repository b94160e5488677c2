// PreTokenizer: cuts a text into the pieces that are encoded each on its own. Runs the steps of a tokenizer.json's
// `pre_tokenizer`; a GGUF file's `tokenizer.ggml.pre` is such a list of steps too (gguf_vocabulary.cc). Immutable.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/known_patterns.h"
#include "text/regex.h"

namespace quire::text {

// What becomes of the matches of a pattern, named as in tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// When Metaspace puts its mark before a text that does not start with one.
enum class PrependScheme { kNever, kFirst, kAlways };  // kFirst: only at the start of the whole text

class PreTokenizer {
 public:
  // `inverted`: the matches are what is kept, the rest is the delimiter.
  void add_split(Regex pattern, SplitBehavior behavior, bool inverted = false);
  void add_split(KnownPattern pattern, SplitBehavior behavior, bool inverted = false);
  void add_split_literal(std::string delimiter, SplitBehavior behavior, bool inverted = false);
  void add_prefix_space();  // a space before each piece that does not start with one
  void add_metaspace(std::string mark, PrependScheme scheme, bool split);

  bool empty() const { return steps_.empty(); }

  struct Pieces {
    std::string storage;  // the text, if a step has changed it
    std::string_view text;
    std::vector<Span> spans;  // of `text`, none empty
  };
  // `text` must outlive `pieces`.
  void cut(std::string_view text, bool at_text_start, Pieces& pieces) const;

 private:
  struct Split {
    std::variant<Regex, KnownPattern, std::string> pattern;
    SplitBehavior behavior;
    bool inverted;
  };
  struct Prefix {};
  struct Metaspace {
    std::string mark;
    PrependScheme scheme;
    bool split;
  };

  static void run(const Split& split, Pieces& pieces);
  static void run(const Prefix& prefix, Pieces& pieces);
  static void run(const Metaspace& metaspace, bool at_text_start, Pieces& pieces);

  std::vector<std::variant<Split, Prefix, Metaspace>> steps_;
};

}  // namespace quire::text
