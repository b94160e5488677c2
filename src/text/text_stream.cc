// TextStream: tokens to text that may leave. A stop string is found where it is completed: the first to be complete stops
// the stream; of those complete at the same character, the longest counts, so the text is cut before its first character.
// Matching runs on valid UTF-8, control tokens' text left out, by one automaton (Aho and Corasick 1975): its depth is the
// length of the longest end of the text that could become a stop string, which is what has to be held back. The automaton is
// immutable; streams with the same stop strings share one, and each has its place in it.
#include <algorithm>

#include "core/check.h"
#include "text/flat_table.h"
#include "text/tokenizer_impl.h"

namespace quire {
namespace {

class StopAutomaton {
 public:
  explicit StopAutomaton(const std::vector<std::string>& stops) {
    for (const std::string& stop : stops) add(stop);
    link();
  }

  // The node that `byte` leads to from `node`. 0 is the start.
  std::uint32_t step(std::uint32_t node, unsigned char byte) const {
    for (;;) {
      if (const std::uint32_t* next = children_.find(edge(node, byte))) return *next;
      if (node == 0) return 0;
      node = nodes_[node].fallback;
    }
  }

  std::size_t held(std::uint32_t node) const { return nodes_[node].depth; }  // bytes that may become a stop string
  std::size_t matched(std::uint32_t node) const {
    return nodes_[node].longest;
  }  // length of the stop string that ends here, or 0

 private:
  struct Node {
    std::uint32_t depth = 0;
    std::uint32_t longest = 0;
    std::uint32_t fallback = 0;  // node of the longest proper suffix
    std::uint32_t parent = 0;
    unsigned char byte = 0;
  };

  static std::uint64_t edge(std::uint32_t node, unsigned char byte) { return (std::uint64_t{node} << 8) | byte; }

  void add(const std::string& stop) {
    std::uint32_t node = 0;
    for (const char c : stop) {
      const auto byte = static_cast<unsigned char>(c);
      const auto next = static_cast<std::uint32_t>(nodes_.size());
      if (children_.insert(edge(node, byte), next)) nodes_.push_back({nodes_[node].depth + 1, 0, 0, node, byte});
      node = *children_.find(edge(node, byte));
    }
    nodes_[node].longest = nodes_[node].depth;
  }

  // Nodes in the order of their depth: a fallback is shallower than its node.
  void link() {
    std::vector<std::uint32_t> order(nodes_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return nodes_[a].depth < nodes_[b].depth; });
    for (const std::uint32_t i : order) {
      Node& node = nodes_[i];
      if (node.depth > 1) node.fallback = step(nodes_[node.parent].fallback, node.byte);
      if (node.longest == 0) node.longest = nodes_[node.fallback].longest;
    }
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
  text::FlatTable<std::uint32_t> children_;
};

}  // namespace

struct TextStream::State {
  State(Tokenizer t, std::shared_ptr<const StopAutomaton> stops, TextStreamOptions o)
      : tokenizer(std::move(t)),
        options(o),
        assembler(tokenizer.impl().parts(), options.at_text_start),
        automaton(std::move(stops)),
        unstoppable_tokens(options.min_tokens) {}

  // Moves `held` over the automaton from `unseen` on, and takes from it what may leave.
  std::string release(std::size_t unseen) {
    for (std::size_t i = unseen; i < held.size(); ++i) {
      node = automaton->step(node, static_cast<unsigned char>(held[i]));
      const std::size_t matched = automaton->matched(node);
      if (matched == 0) continue;
      stopped = true;
      std::string out = held.substr(0, i + 1 - matched);
      held.clear();
      return out;
    }
    std::string out = held.substr(0, held.size() - automaton->held(node));
    held.erase(0, out.size());
    return out;
  }

  Tokenizer tokenizer;
  TextStreamOptions options;
  text::TextAssembler assembler;
  std::shared_ptr<const StopAutomaton> automaton;
  std::uint32_t node = 0;  // of the automaton
  int unstoppable_tokens;  // still to come
  std::string held;        // valid UTF-8 that may become a stop string
  bool stopped = false;
};

TextStream::TextStream(Tokenizer tokenizer, std::vector<std::string> stop, TextStreamOptions options) {
  for (std::size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty()) fail(ErrorCode::kInvalidArgument, "stop[{}] is empty", i);
    if (!is_valid_utf8(stop[i])) fail(ErrorCode::kInvalidArgument, "stop[{}] is not valid UTF-8", i);
  }
  state_ = std::make_unique<State>(std::move(tokenizer), std::make_shared<const StopAutomaton>(stop), options);
}

TextStream::TextStream(std::unique_ptr<State> state) : state_(std::move(state)) {}

TextStream TextStream::another() const {
  return TextStream(std::make_unique<State>(state_->tokenizer, state_->automaton, state_->options));
}

TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

std::string TextStream::push(TokenId id) {
  if (state_->stopped) return {};
  if (state_->unstoppable_tokens > 0) {
    --state_->unstoppable_tokens;
    std::string text;
    state_->assembler.push(id, true, text);
    return text;
  }
  const std::size_t unseen = state_->held.size();
  state_->assembler.push(id, true, state_->held);
  return state_->release(unseen);
}

std::string TextStream::finish() {
  if (state_->stopped) return {};
  const std::size_t unseen = state_->held.size();
  state_->assembler.finish(state_->held);
  std::string out = state_->release(unseen);
  if (!state_->stopped) out += std::exchange(state_->held, {});
  return out;
}

bool TextStream::stopped() const { return state_->stopped; }

}  // namespace quire
