// EndpointTarget against servers that answer well, wrongly, late, half or not at all: each ends in an answer or in a failure that
// says what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <future>

#include "benchmarks/serving/endpoint_target.h"
#include "benchmarks/serving/load_driver.h"
#include "tests/benchmarks/fake_server.h"
#include "tests/support/expect_error.h"

namespace quire::bench {
namespace {

using std::chrono::milliseconds;
using test::FakeConnection;
using test::FakeServer;
using test::kDoneEvent;
using test::text_event;
using test::usage_event;
using testing::AnyOf;
using testing::HasSubstr;

constexpr HttpTimeouts kPatient = {milliseconds(20'000), milliseconds(20'000), milliseconds(30'000)};

PlannedRequest planned(int input_tokens, int output_tokens) {
  return {.prompt = {{1, input_tokens}}, .input_tokens = input_tokens, .output_tokens = output_tokens};
}

EndpointTarget target_of(const std::string& url, const HttpTimeouts& timeouts = kPatient, EndpointOptions options = {}) {
  options.model_name = "m";
  return {parse_url(url), timeouts, options, PromptMaker(1000, 1)};
}

// The answer to one request.
Answer ask(Target& target, const PlannedRequest& request = planned(3, 2)) {
  std::promise<Answer> promise;
  target.prepare(request)([&](Answer answer) { promise.set_value(std::move(answer)); });
  return promise.get_future().get();
}

void answer_well(FakeConnection& connection) {
  connection.send_head(200, "text/event-stream");
  connection.send_chunk(text_event("a"));
  connection.send_chunk(text_event("b"));
  connection.send_chunk(usage_event(3, 2) + std::string(kDoneEvent));
  connection.send_last_chunk();
}

TEST(Endpoint, StreamsAreTimedPieceByPiece) {
  FakeServer server([](FakeConnection& connection) {
    connection.send_head(200, "text/event-stream; charset=utf-8");
    connection.pause(30);
    connection.send_chunk(text_event("a"));
    connection.pause(100);
    const std::string event = text_event("b");
    connection.send_chunk(event.substr(0, 10));  // cut anywhere
    connection.pause(100);
    connection.send_chunk(event.substr(10) + usage_event(3, 2));
    connection.send_chunk(kDoneEvent);
    connection.send_last_chunk();
  });
  EndpointTarget target = target_of(server.url());
  const Clock::time_point start = Clock::now();
  const Answer answer = ask(target);
  ASSERT_FALSE(answer.failure) << answer.failure->message;
  ASSERT_EQ(answer.pieces.size(), 2u);
  EXPECT_GE(answer.pieces[0] - start, milliseconds(30));
  EXPECT_GE(answer.pieces[1] - start, milliseconds(230));
  EXPECT_GE(answer.pieces[1] - answer.pieces[0], milliseconds(20)) << "200, less what a busy machine was late for the first";
  EXPECT_EQ(answer.prompt_tokens, 3);
  EXPECT_EQ(answer.output_tokens, 2);
}

TEST(Endpoint, RequestsSayWhatServersUnderstand) {
  std::mutex mutex;
  std::vector<std::string> heads, bodies;
  FakeServer server([&](FakeConnection& connection) {
    {
      const std::lock_guard lock(mutex);
      heads.push_back(connection.head);
      bodies.push_back(connection.body);
    }
    answer_well(connection);
  });
  EndpointTarget ids = target_of(server.url(), kPatient, {.bearer = "secret"});
  ASSERT_FALSE(ask(ids).failure);
  EXPECT_THAT(heads[0], HasSubstr("POST /v1/completions HTTP/1.1\r\n"));
  EXPECT_THAT(heads[0], HasSubstr("Host: 127.0.0.1:" + std::to_string(server.port())));
  EXPECT_THAT(heads[0], HasSubstr("Authorization: Bearer secret\r\n"));
  EXPECT_THAT(heads[0], HasSubstr("Content-Type: application/json\r\n"));
  const auto body = boost::json::parse(bodies[0]);
  EXPECT_EQ(body.at("prompt").as_array().size(), 3u);
  EXPECT_TRUE(body.at("prompt").as_array()[0].is_int64());
  EXPECT_EQ(body.at("max_tokens"), 2);
  EXPECT_EQ(body.at("stream"), true);
  EXPECT_EQ(body.at("stream_options").at("include_usage"), true);
  EXPECT_EQ(body.at("ignore_eos"), true);
  EXPECT_EQ(body.at("model"), "m");
}

TEST(Endpoint, ConnectionsAreKeptAndAStaleOneIsReplaced) {
  std::atomic<int> num_requests{0};
  FakeServer server([&](FakeConnection& connection) {
    answer_well(connection);
    if (++num_requests == 2) connection.close();  // without saying so
  });
  EndpointTarget target = target_of(server.url());
  for (int i = 0; i < 4; ++i) {
    const Answer answer = ask(target);
    EXPECT_FALSE(answer.failure) << i << ": " << answer.failure->message;
  }
  EXPECT_EQ(server.num_connections(), 2);
}

TEST(Endpoint, AServerThatStallsIsNotAskedTwice) {
  std::atomic<int> num_requests{0};
  FakeServer server([&](FakeConnection& connection) {
    if (++num_requests > 1) return connection.stall();
    answer_well(connection);
  });
  EndpointTarget target = target_of(server.url(), {kPatient.connect, milliseconds(1'000), kPatient.total});
  ASSERT_FALSE(ask(target).failure);
  const Answer answer = ask(target);  // on the connection of the first
  ASSERT_TRUE(answer.failure);
  EXPECT_EQ(answer.failure->kind, "timeout");
  EXPECT_EQ(num_requests, 2);
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(Endpoint, ManyStreamsRunAtOnce) {
  FakeServer server([](FakeConnection& connection) {
    connection.send_head(200, "text/event-stream");
    for (int i = 0; i < 5; ++i) {
      connection.send_chunk(text_event("x"));
      connection.pause(20);
    }
    connection.send_chunk(kDoneEvent);
    connection.send_last_chunk();
  });
  EndpointTarget target = target_of(server.url());
  const RunRecord run = run_load(std::vector<PlannedRequest>(40, planned(3, 5)), target, {});
  EXPECT_FALSE(run.given_up);
  for (const RequestRecord& request : run.requests) EXPECT_EQ(request.output_tokens, 5);
  EXPECT_EQ(server.num_connections(), 40);
}

struct Misbehaviour {
  const char* name;
  FakeServer::Answer answer;
  const char* kind;
  const char* message;
};

class BadServers : public testing::TestWithParam<Misbehaviour> {};

TEST_P(BadServers, EndInAFailureThatNamesIt) {
  FakeServer server(GetParam().answer);
  HttpTimeouts timeouts = kPatient;
  if (std::string(GetParam().message).starts_with("did not end"))
    timeouts.total = milliseconds(1000);
  else if (std::string(GetParam().kind) == "timeout")
    timeouts.read = milliseconds(250);
  EndpointTarget target = target_of(server.url(), timeouts);
  const Answer answer = ask(target);
  ASSERT_TRUE(answer.failure);
  EXPECT_EQ(answer.failure->kind, GetParam().kind) << answer.failure->message;
  EXPECT_THAT(answer.failure->message, HasSubstr(GetParam().message));
}

void begin(FakeConnection& connection) {
  connection.send_head(200, "text/event-stream");
  connection.send_chunk(text_event("a"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadServers,
    testing::Values(
        Misbehaviour{"Status400",
                     [](FakeConnection& c) { c.send_json(400, R"({"error":{"message":"prompt too long","type":"x"}})"); },
                     "http_400", "status 400: 'prompt too long'"},
        Misbehaviour{"Status503",
                     [](FakeConnection& c) {
                       c.send_head(503, "text/html");
                       c.send_chunk("<h1>busy</h1>");
                       c.send_last_chunk();
                     },
                     "http_503", "<h1>busy</h1>"},
        Misbehaviour{"ErrorWithStatus200", [](FakeConnection& c) { c.send_json(200, R"({"error":"no model"})"); }, "server_error",
                     "no model"},
        Misbehaviour{"NoStream", [](FakeConnection& c) { c.send_json(200, R"({"choices":[]})"); }, "bad_stream",
                     "'application/json' instead of text/event-stream"},
        Misbehaviour{"ErrorInTheStream",
                     [](FakeConnection& c) {
                       begin(c);
                       c.send_chunk("data: {\"error\":{\"message\":\"worker died\"}}\n\n");
                       c.stall();
                     },
                     "server_error", "worker died"},
        Misbehaviour{"Garbage",
                     [](FakeConnection& c) {
                       begin(c);
                       c.send_chunk("\x01\x02 garbage\n\n");
                       c.stall();
                     },
                     "bad_stream", "no server-sent event"},
        Misbehaviour{"NoDone",
                     [](FakeConnection& c) {
                       begin(c);
                       c.send_last_chunk();
                     },
                     "closed", "without [DONE]"},
        Misbehaviour{"HalfAChunk",
                     [](FakeConnection& c) {
                       begin(c);
                       c.send("40\r\ndata: {\"choi");
                       c.close();
                     },
                     "closed", "closed the connection, reading the answer"},
        Misbehaviour{"ChunkOfNoSize",
                     [](FakeConnection& c) {
                       begin(c);
                       c.send("zz\r\n");
                       c.stall();
                     },
                     "bad_http", "is no HTTP"},
        Misbehaviour{"NoHttp", [](FakeConnection& c) { c.send("SSH-2.0-OpenSSH_9.2\r\n\r\n"); }, "bad_http", "is no HTTP"},
        Misbehaviour{"ClosesAtOnce", [](FakeConnection& c) { c.close(); }, "closed", "waiting for the answer"},
        Misbehaviour{"ClosesInTheMiddle",
                     [](FakeConnection& c) {
                       begin(c);
                       c.close();
                     },
                     "closed", "reading the answer"},
        Misbehaviour{"NeverAnswers", [](FakeConnection& c) { c.stall(); }, "timeout", "waiting for the answer"},
        Misbehaviour{"StopsInTheMiddle",
                     [](FakeConnection& c) {
                       begin(c);
                       c.stall();
                     },
                     "timeout", "reading the answer"},
        Misbehaviour{"TakesForever",
                     [](FakeConnection& c) {
                       begin(c);
                       while (c.is_open()) {
                         c.send_chunk(": alive\n\n");
                         c.pause(20);
                       }
                     },
                     "timeout", "did not end in time, reading the answer"},
        // More than a client can read, so that it never waits.
        Misbehaviour{"Floods",
                     [](FakeConnection& c) {
                       begin(c);
                       std::string comments;
                       for (int i = 0; i < 20'000; ++i) comments += ": still here\n";
                       while (c.is_open()) c.send_chunk(comments);
                     },
                     "timeout", "did not end in time, reading the answer"},
        Misbehaviour{"SendsMoreThanAskedFor",
                     [](FakeConnection& c) {
                       begin(c);
                       while (c.is_open()) c.send_chunk(text_event("a"));
                     },
                     "too_long", "goes on after 20 pieces"}),
    [](const testing::TestParamInfo<Misbehaviour>& test) { return test.param.name; });

TEST(Endpoint, NobodyAtTheDoorIsSaid) {
  std::string url;
  {
    FakeServer server(answer_well);
    url = server.url();
  }
  EndpointTarget target = target_of(url);
  const Answer answer = ask(target);
  ASSERT_TRUE(answer.failure);
  EXPECT_EQ(answer.failure->kind, "connect");
  EXPECT_THAT(answer.failure->message, HasSubstr("refused"));
  EXPECT_ERROR(target_of("http://no-such-host.invalid/v1"), ErrorCode::kUnavailable, "no-such-host.invalid");
}

TEST(Endpoint, AServerThatDiesInMidRunEndsTheRun) {
  FakeServer* dying = nullptr;
  std::atomic<int> num_requests{0};
  FakeServer server([&](FakeConnection& connection) {
    answer_well(connection);
    if (++num_requests == 5) dying->die();
  });
  dying = &server;
  EndpointTarget target = target_of(server.url());
  const RunRecord run = run_load(std::vector<PlannedRequest>(50, planned(3, 2)), target, {.num_streams = 2});
  EXPECT_TRUE(run.given_up);
  EXPECT_LT(run.requests.size(), 12u);
  EXPECT_FALSE(run.requests[0].failure);
  // One stream meets the dead server; the other's request may be cancelled for it.
  EXPECT_TRUE(std::any_of(run.requests.begin(), run.requests.end(), [](const auto& r) {
    return r.failure && (r.failure->kind == "connect" || r.failure->kind == "closed");
  }));
}

TEST(Endpoint, CancellingEndsWhatIsOpen) {
  FakeServer server([](FakeConnection& connection) { connection.stall(); });
  EndpointTarget target = target_of(server.url());
  std::vector<std::promise<Answer>> promises(3);
  for (auto& promise : promises)
    target.prepare(planned(3, 2))([&promise](Answer answer) { promise.set_value(std::move(answer)); });
  target.cancel_all();
  for (auto& promise : promises) EXPECT_EQ(promise.get_future().get().failure.value().kind, "cancelled");
  EXPECT_EQ(ask(target).failure.value().kind, "cancelled") << "what is sent later too";
}

TEST(Endpoint, TheModelsNameIsAskedFor) {
  FakeServer server([](FakeConnection& connection) {
    if (connection.method == "GET" && connection.target == "/v1/models")
      connection.send_json(200, R"({"object":"list","data":[{"id":"tiny"}]})");
    else
      connection.send_json(404, "{}");
  });
  EXPECT_EQ(first_model_of(parse_url(server.url()), kPatient, ""), "tiny");
  EXPECT_ERROR(first_model_of(parse_url(server.url() + "x"), kPatient, ""), ErrorCode::kUnavailable, "status 404");
  FakeServer other([](FakeConnection& connection) { connection.send_json(200, R"({"data":[]})"); });
  EXPECT_ERROR(first_model_of(parse_url(other.url()), kPatient, ""), ErrorCode::kUnavailable, "--model-name");
}

}  // namespace
}  // namespace quire::bench
