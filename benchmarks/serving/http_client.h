// HttpClient: many HTTP/1.1 exchanges with one server at once, over as many connections as are needed, kept open between them.
// The body of an answer is handed on as it comes. Runs a thread of its own, on which all callbacks come.
// Not here: https, redirects, compression, cookies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "benchmarks/serving/target.h"
#include "benchmarks/serving/url.h"

namespace quire::bench {

struct HttpTimeouts {
  std::chrono::milliseconds connect{5'000};
  std::chrono::milliseconds read{120'000};   // without a byte from the server
  std::chrono::milliseconds total{600'000};  // of an exchange
};

struct HttpRequest {
  bool is_post = true;
  std::string target = {};  // "/v1/completions"
  std::string body = {};    // JSON
  std::string bearer = {};  // for the field Authorization; empty: none
};

// on_body gets bytes and when they came, and returns whether to go on; on_end comes once, as the last. Kinds of failure:
// "connect", "timeout", "closed" (before the answer's end), "bad_http", "cancelled".
struct HttpCallbacks {
  std::function<void(int status, std::string_view content_type)> on_head;
  std::function<bool(std::string_view bytes, Clock::time_point now)> on_body;
  std::function<void(std::optional<Failure> failure)> on_end;
};

class HttpClient {
 public:
  // Finds the server's address; connects at the first send(). Throws Error(kUnavailable) for a host without address.
  HttpClient(const Url& url, const HttpTimeouts& timeouts);
  ~HttpClient();  // as cancel_all(), then waits for the thread
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(HttpRequest request, HttpCallbacks callbacks);
  // Ends all exchanges, those sent later too.
  void cancel_all();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::bench
