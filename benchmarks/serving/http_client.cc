#include "benchmarks/serving/http_client.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace quire::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::uint32_t kMaxHeadBytes = 64 << 10;
constexpr std::size_t kPieceBytes = 16 << 10;

struct Connection {
  explicit Connection(asio::io_context& io) : stream(io) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;  // what was read beyond the message
};

// What the exchanges of a client share. Used on its thread alone.
struct Shared {
  Url url;
  HttpTimeouts timeouts;
  tcp::resolver::results_type addresses;
  asio::io_context io{1};
  std::vector<std::unique_ptr<Connection>> idle;  // the last used one last
  std::unordered_set<class Exchange*> open;
  bool is_cancelled = false;
};

// One request and its answer. Lives as long as an operation of it is under way.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Shared& shared, HttpRequest request, HttpCallbacks callbacks)
      : shared_(shared), callbacks_(std::move(callbacks)), deadline_(Clock::now() + shared.timeouts.total) {
    message_.method(request.is_post ? http::verb::post : http::verb::get);
    message_.target(request.target);
    message_.version(11);
    message_.set(http::field::host, shared.url.authority());
    message_.set(http::field::user_agent, "quire-serve_bench");
    if (request.is_post) message_.set(http::field::content_type, "application/json");
    if (!request.bearer.empty()) message_.set(http::field::authorization, "Bearer " + request.bearer);
    message_.body() = std::move(request.body);
    message_.prepare_payload();
  }

  void start() {
    if (shared_.is_cancelled) return callbacks_.on_end(Failure{"cancelled", "the run was given up"});
    shared_.open.insert(this);
    is_reused_ = !shared_.idle.empty();
    if (!is_reused_) return connect();
    connection_ = std::move(shared_.idle.back());
    shared_.idle.pop_back();
    write();
  }

  void cancel() { connection_->stream.close(); }

 private:
  void connect() {
    phase_ = "connecting";
    connection_ = std::make_unique<Connection>(shared_.io);
    limit(shared_.timeouts.connect);
    connection_->stream.async_connect(shared_.addresses, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
      if (error) return self->end(error);
      error_code ignored;
      self->connection_->stream.socket().set_option(tcp::no_delay(true), ignored);
      self->write();
    });
  }

  void write() {
    phase_ = "sending";
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(boost::none);
    limit(shared_.timeouts.read);
    http::async_write(connection_->stream, message_, [self = shared_from_this()](error_code error, std::size_t) {
      // A server may answer, with an error, before it has read everything; then the answer says more.
      self->write_error_ = error;
      self->read_head();
    });
  }

  void read_head() {
    phase_ = "waiting for the answer";
    limit(shared_.timeouts.read);
    http::async_read_header(connection_->stream, connection_->buffer, *parser_,
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (error && self->may_retry(error)) return self->retry();
                              if (error) return self->end(self->write_error_ ? self->write_error_ : error);
                              self->guarded([&] { self->take_head(); });
                            });
  }

  void take_head() {
    const auto& head = parser_->get();
    callbacks_.on_head(static_cast<int>(head.result_int()), std::string(head[http::field::content_type]));
    phase_ = "reading the answer";
    read_body();
  }

  void read_body() {
    if (parser_->is_done()) return finish();
    limit(shared_.timeouts.read);
    auto& body = parser_->get().body();
    body.data = piece_.data();
    body.size = piece_.size();
    http::async_read_some(connection_->stream, connection_->buffer, *parser_,
                          [self = shared_from_this()](error_code error, std::size_t) {
                            const Clock::time_point now = Clock::now();
                            self->guarded([&] { self->take_body(error, now); });
                          });
  }

  void take_body(error_code error, Clock::time_point now) {
    const std::size_t size = piece_.size() - parser_->get().body().size;
    if (size > 0 && !callbacks_.on_body({piece_.data(), size}, now)) return close(std::nullopt);
    if (error && error != http::error::need_buffer) return end(error);
    // The stream's timer alone would not do: a server that always has more to read keeps it from being looked at.
    if (now >= deadline_) return end(beast::error::timeout);
    read_body();
  }

  // The whole answer is there: the connection is fit for the next request if nothing is left in it.
  void finish() {
    if (parser_->keep_alive() && connection_->buffer.size() == 0 && !write_error_) {
      connection_->stream.expires_never();
      shared_.idle.push_back(std::move(connection_));
    }
    close(std::nullopt);
  }

  // The server may close an idle connection at any time, also while the next request is on its way; that is no failure of the
  // server's, and a request that nobody answered a byte to is sent again on a new connection. Not one that timed out: the server
  // has it, and would get it twice.
  bool may_retry(error_code error) const {
    return is_reused_ && error != beast::error::timeout && !parser_->got_some() && connection_->buffer.size() == 0 &&
           !shared_.is_cancelled;
  }
  void retry() {
    is_reused_ = false;
    write_error_ = {};
    connect();
  }

  void limit(std::chrono::milliseconds period) { connection_->stream.expires_at(std::min(deadline_, Clock::now() + period)); }

  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const std::exception& error) {
      close(Failure{"client", error.what()});
    }
  }

  void end(error_code error) {
    const std::string server = shared_.url.authority();
    if (shared_.is_cancelled) return close(Failure{"cancelled", "the run was given up"});
    if (error == beast::error::timeout) {
      const bool is_endless = Clock::now() >= deadline_;
      return close(Failure{"timeout", is_endless ? fmt::format("{} did not end in time, {}", server, phase_)
                                                 : fmt::format("{} gave no sign in time, {}", server, phase_)});
    }
    if (std::string_view(phase_) == "connecting")
      return close(Failure{"connect", fmt::format("no connection to {}: {}", server, error.message())});
    const bool is_malformed = error.category() == http::make_error_code(http::error::bad_version).category() &&
                              error != http::error::end_of_stream && error != http::error::partial_message;
    if (is_malformed) return close(Failure{"bad_http", fmt::format("the answer of {} is no HTTP: {}", server, error.message())});
    close(Failure{"closed", fmt::format("{} closed the connection, {}: {}", server, phase_, error.message())});
  }

  void close(std::optional<Failure> failure) {
    connection_.reset();
    shared_.open.erase(this);
    if (const auto on_end = std::exchange(callbacks_.on_end, nullptr)) on_end(std::move(failure));
  }

  Shared& shared_;
  HttpCallbacks callbacks_;
  http::request<http::string_body> message_;
  const Clock::time_point deadline_;
  std::unique_ptr<Connection> connection_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::vector<char> piece_ = std::vector<char>(kPieceBytes);
  error_code write_error_;
  const char* phase_ = "connecting";
  bool is_reused_ = false;
};

}  // namespace

class HttpClient::Impl {
 public:
  Impl(const Url& url, const HttpTimeouts& timeouts) : work_(asio::make_work_guard(shared_.io)) {
    shared_.url = url;
    shared_.timeouts = timeouts;
    error_code error;
    shared_.addresses = tcp::resolver(shared_.io).resolve(url.host, url.port, error);
    if (error) throw Error(ErrorCode::kUnavailable, fmt::format("no address of the host '{}': {}", url.host, error.message()));
    thread_ = std::thread([this] { shared_.io.run(); });
  }

  ~Impl() {
    cancel_all();
    work_.reset();
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void send(HttpRequest request, HttpCallbacks callbacks) {
    auto exchange = std::make_shared<Exchange>(shared_, std::move(request), std::move(callbacks));
    asio::post(shared_.io, [exchange = std::move(exchange)] { exchange->start(); });
  }

  void cancel_all() {
    asio::post(shared_.io, [this] {
      shared_.is_cancelled = true;
      shared_.idle.clear();
      for (Exchange* exchange : shared_.open) exchange->cancel();
    });
  }

 private:
  Shared shared_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

HttpClient::HttpClient(const Url& url, const HttpTimeouts& timeouts) : impl_(std::make_unique<Impl>(url, timeouts)) {}
HttpClient::~HttpClient() = default;

void HttpClient::send(HttpRequest request, HttpCallbacks callbacks) { impl_->send(std::move(request), std::move(callbacks)); }
void HttpClient::cancel_all() { impl_->cancel_all(); }

}  // namespace quire::bench
