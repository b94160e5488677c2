// ChatTemplate::Format: a family of chat templates as data, and its recognition in a template's text. Templates are programs
// from a file that nobody vouches for, so they are not run: what they would write is known per family, and the details in
// which a family's templates differ (spaces, trimming, the default system message) are read from their literals.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/tokenizer.h"

namespace quire {

struct ChatTemplate::Format {
  struct Turn {
    std::string open;
    std::string close;
    bool trims = false;  // white space at both ends of the content, as Python's str.strip()
  };
  enum class SystemPlace {
    kOwnTurn,
    kFirstTurn,  // like kOwnTurn, but the first turn is a system turn in any case, with `preamble` before its text
    kFirstUser,  // in front of the first user message, two line breaks between
    kLastUser,   // in front of the last message, if it is a user's
  };

  std::string family;
  bool adds_bos = false;
  Turn system, user, assistant;
  std::string generation_prompt;
  SystemPlace system_place = SystemPlace::kOwnTurn;
  std::string preamble;
  std::optional<std::string> default_system;  // the text of a first system turn where the dialogue has none
  bool requires_system = false;               // the template's default changes with the date, so it cannot stand here
  bool alternates = false;                    // user and assistant must take turns, beginning with the user
  bool thinks = false;                        // an assistant's "<think>" part is dropped from all turns but the last (Qwen 3)
  std::vector<std::string> control_tokens;    // must exist in the vocabulary
};

// Throws Error(kUnsupported) for a template of no known family. `eos`: the text of the end token.
ChatTemplate::Format recognize_chat_format(std::string_view source, std::string_view eos);

}  // namespace quire
