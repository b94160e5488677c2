// Encodes, decodes or renders for oracle_test.py. usage: encode_lines TOKENIZER
// Requests on standard input, one after the other: a line "COMMAND LENGTH", then LENGTH bytes and a line break.
//   encode N     the ids of the bytes, without special tokens of the configuration
//   special N    the same with control tokens parsed and BOS and EOS added
//   decode N     the bytes are ids with spaces between; the answer is the text as a JSON string
//   stream N     the same through a TextStream
//   chat N       the bytes are a JSON array of messages; the answer is ids, and the text as a JSON string, in one JSON array
//   time N       the seconds that encode takes
// One line of answer each. An error's line begins with "error: ".
#include <boost/json.hpp>
#include <chrono>
#include <iostream>
#include <sstream>

#include "tests/text/load_vocabulary.h"

namespace {

namespace json = boost::json;
using quire::TokenId;

std::string join(const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return out;
}

std::vector<TokenId> parse_ids(const std::string& text) {
  std::istringstream in(text);
  std::vector<TokenId> ids;
  for (TokenId id; in >> id;) ids.push_back(id);
  return ids;
}

std::string stream(const quire::Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  quire::TextStream stream(tokenizer, {}, {.at_text_start = true});
  std::string out;
  for (const TokenId id : ids) out += stream.push(id);
  return out + stream.finish();
}

std::string chat(const quire::Tokenizer& tokenizer, const std::string& text) {
  std::vector<quire::ChatMessage> messages;
  const json::value request = json::parse(text);
  for (const auto& m : request.at("messages").as_array()) {
    messages.push_back({json::value_to<std::string>(m.at("role")), json::value_to<std::string>(m.at("content"))});
  }
  const bool prompt = request.at("add_generation_prompt").as_bool();
  const quire::ChatTemplate chat_template(tokenizer);
  return json::serialize(json::array{json::value_from(chat_template.encode(messages, prompt)),
                                     chat_template.render(messages, prompt), std::string(chat_template.family())});
}

std::string answer(const quire::Tokenizer& tokenizer, const std::string& command, const std::string& bytes) {
  if (command == "encode") return join(tokenizer.encode(bytes, {.add_special = false, .parse_special = false}));
  if (command == "special") return join(tokenizer.encode(bytes, {.add_special = true, .parse_special = true}));
  if (command == "decode") return json::serialize(json::string(tokenizer.decode(parse_ids(bytes))));
  if (command == "stream") return json::serialize(json::string(stream(tokenizer, parse_ids(bytes))));
  if (command == "chat") return chat(tokenizer, bytes);
  if (command == "time") {
    const auto begin = std::chrono::steady_clock::now();
    tokenizer.encode(bytes, {.add_special = false});
    return std::to_string(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return "error: unknown command";
}

}  // namespace

int main(int argc, char** argv) try {
  std::ios::sync_with_stdio(false);
  if (argc != 2) throw std::invalid_argument("usage: encode_lines TOKENIZER");
  const quire::Tokenizer tokenizer = quire::testing::load_test_tokenizer(argv[1]);
  std::string command;
  std::size_t length = 0;
  while (std::cin >> command >> length) {
    std::cin.get();
    std::string bytes(length, '\0');
    std::cin.read(bytes.data(), static_cast<std::streamsize>(length));
    try {
      std::cout << answer(tokenizer, command, bytes) << '\n';
    } catch (const std::exception& e) {
      std::cout << "error: " << e.what() << '\n';
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
