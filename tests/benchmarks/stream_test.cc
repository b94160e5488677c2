// What an endpoint says: addresses, server-sent events, and their meaning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "benchmarks/serving/completion_stream.h"
#include "benchmarks/serving/printable.h"
#include "benchmarks/serving/url.h"
#include "tests/benchmarks/fake_server.h"
#include "tests/support/expect_error.h"

namespace quire::bench {
namespace {

using std::chrono::milliseconds;
using test::text_event;
using test::usage_event;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(UrlTest, PartsAreFound) {
  const Url url = parse_url("http://localhost:8080/v1/");
  EXPECT_EQ(url.host, "localhost");
  EXPECT_EQ(url.port, "8080");
  EXPECT_EQ(url.path, "/v1");
  EXPECT_EQ(parse_url("http://example.org").port, "80");
  EXPECT_EQ(parse_url("http://example.org").path, "");
  const Url six = parse_url("http://[::1]:90/a/b");
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.authority(), "[::1]:90");
}

TEST(UrlTest, WhatIsNoHttpAddressIsRefused) {
  EXPECT_ERROR(parse_url("https://example.org/v1"), ErrorCode::kUnsupported, "https is not supported");
  for (const char* wrong :
       {"", "example.org", "ftp://a", "http://", "http://:80", "http://a:", "http://a:0", "http://a:65536", "http://a:8x",
        "http://[::1", "http://[::1]x", "http://a/b c", "http://a/\r\nX: y", "http://u@a", "http://a?b"})
    EXPECT_ERROR(parse_url(wrong), ErrorCode::kInvalidArgument, "url is");
}

std::vector<std::string> events_of(std::string_view text, std::size_t piece) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  for (std::size_t at = 0; at < text.size(); at += piece) parser.push(text.substr(at, piece));
  parser.finish();
  return events;
}

TEST(Sse, EventsAreFoundHoweverTheBytesAreCut) {
  const std::string text =
      "\xEF\xBB\xBF: hello\n\ndata: one\n\nevent: x\ndata:two\ndata:  three\nid: 7\n\ndata\n\r\nretry: 5\n\ndata: four\r\rdata: "
      "five\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece)
    EXPECT_THAT(events_of(text, piece), ElementsAre("one", "two\n three", "", "four", "five")) << piece;
}

RC_GTEST_PROP(SseProperty, DataComesBack, ()) {
  const auto lines = *rc::gen::nonEmpty<std::vector<std::string>>();
  std::string text, expected;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i];
    for (char& c : line)
      if (c == '\n' || c == '\r') c = ' ';
    const std::string end = *rc::gen::element<std::string>("\n", "\r\n", "\r");
    text += "data: " + line + end;
    expected += (i > 0 ? "\n" : "") + line;
  }
  text += *rc::gen::element<std::string>("\n\n", "\r\n\r\n");
  RC_ASSERT(events_of(text, *rc::gen::inRange<std::size_t>(1, 9)) == std::vector<std::string>{expected});
}

TEST(Sse, GarbageAndHalfEventsAreErrors) {
  EXPECT_ERROR(events_of("data: a\n\n<html>\n", 100), ErrorCode::kInvalidArgument,
               "line 3 of the stream is no server-sent event: '<html>'");
  EXPECT_ERROR(events_of("dat: a\n", 100), ErrorCode::kInvalidArgument, "line 1");
  EXPECT_ERROR(events_of("data: a\n", 100), ErrorCode::kInvalidArgument, "in the middle of an event");
  EXPECT_ERROR(events_of("data: a\n\nda", 100), ErrorCode::kInvalidArgument, "in the middle of an event");
  EXPECT_ERROR(events_of(std::string(17 << 20, 'x'), 1 << 16), ErrorCode::kInvalidArgument, "an event of over");
}

Answer answer_to(std::initializer_list<std::string_view> events) {
  CompletionStream stream;
  Clock::time_point now{};
  for (const std::string_view event : events)
    if (!stream.push(event, now += milliseconds(1))) break;
  return stream.finish();
}

TEST(Completions, PiecesUsageAndEnd) {
  const Answer answer = answer_to({text_event("a"), text_event("b"),
                                   "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
                                   "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,"
                                   "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
                                   test::kDoneEvent});
  EXPECT_FALSE(answer.failure) << answer.failure->message;
  EXPECT_EQ(answer.pieces.size(), 2u);
  EXPECT_EQ(answer.pieces[1] - answer.pieces[0], milliseconds(1));
  EXPECT_EQ(answer.prompt_tokens, 5);
  EXPECT_EQ(answer.output_tokens, 2);
  EXPECT_EQ(answer.cached_tokens, 4);
}

TEST(Completions, ChatsOpeningIsNoTokenAndSilentTokensAre) {
  const Answer answer =
      answer_to({"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}]}\n\n",
                 "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n",
                 "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":null}]}\n\n",
                 "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n",
                 "data: {\"choices\":[{\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}]}\n\n", "data: [DONE]\n\n"});
  EXPECT_FALSE(answer.failure);
  EXPECT_EQ(answer.pieces.size(), 4u);
  EXPECT_EQ(answer.pieces[0].time_since_epoch(), milliseconds(2));
  EXPECT_FALSE(answer.output_tokens);
}

TEST(Completions, EveryFailureHasAKindAndAMessage) {
  const struct {
    std::initializer_list<std::string_view> events;
    const char* kind;
    const char* message;
  } cases[] = {
      {{"data: {\"error\":{\"message\":\"out of memory\"}}\n\n", "data: [DONE]\n\n"}, "server_error", "out of memory"},
      {{"data: {\"error\":\"no\"}\n\n"}, "server_error", "no"},
      {{"data: {\"choices\":[{\"text\":\"a\"}]}\n\n"}, "closed", "without [DONE]"},
      {{"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"cho"}, "bad_stream", "in the middle of an event"},
      {{"data: [DONE]\n\n"}, "empty", "no text"},
      {{"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\ndata: {}\n\n"}, "bad_stream", "after [DONE]"},
      {{"data: \xff\xfe{garbage\n\n"}, "bad_stream", "no JSON object: '\\xff\\xfe{garbage'"},
      {{"data: []\n\n"}, "bad_stream", "no JSON object"},
      {{"data: {\"a\":1}\n\n"}, "bad_stream", "without choices"},
      {{"what is this\n\n"}, "bad_stream", "no server-sent event"},
      {{""}, "closed", "without [DONE]"},
  };
  for (const auto& [events, kind, message] : cases) {
    const Answer answer = answer_to(events);
    ASSERT_TRUE(answer.failure) << message;
    EXPECT_EQ(answer.failure->kind, kind) << answer.failure->message;
    EXPECT_THAT(answer.failure->message, HasSubstr(message));
  }
}

TEST(Completions, ErrorsOfAnyShapeAreRead) {
  EXPECT_EQ(error_message(R"({"error":{"message":"m","code":400}})"), "m");
  EXPECT_EQ(error_message(R"({"error":"m"})"), "m");
  EXPECT_EQ(error_message(R"({"error":{"code":1}})"), R"({"code":1})");
  EXPECT_EQ(error_message(R"({"error":null})"), std::nullopt);
  EXPECT_EQ(error_message("<html>"), std::nullopt);
}

TEST(Printable, QuotesCutsAndEscapes) {
  EXPECT_EQ(printable("a\x1b[31m\n"), "'a\\x1b[31m\\x0a'");
  EXPECT_EQ(printable("abcdef", 3), "'abc...'");
}

}  // namespace
}  // namespace quire::bench
