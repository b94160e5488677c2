#include "tests/benchmarks/fake_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "core/check.h"

namespace quire::test {
namespace {

// Reads what there is; false if the client has closed.
bool read_more(int socket, std::string& text) {
  char bytes[4096];
  const ssize_t count = recv(socket, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  text.append(bytes, static_cast<std::size_t>(count));
  return true;
}

// The next request of a connection, its head and body; `rest` is what was read of the one after.
bool read_request(int socket, std::string& rest, FakeConnection& request) {
  std::size_t end = 0;
  while ((end = rest.find("\r\n\r\n")) == std::string::npos)
    if (!read_more(socket, rest)) return false;
  request.head = rest.substr(0, end + 2);
  rest.erase(0, end + 4);
  const std::size_t space = request.head.find(' ');
  request.method = request.head.substr(0, space);
  request.target = request.head.substr(space + 1, request.head.find(' ', space + 1) - space - 1);
  const std::size_t field = request.head.find("Content-Length: ");
  const std::size_t size = field == std::string::npos ? 0 : std::strtoul(request.head.c_str() + field + 16, nullptr, 10);
  while (rest.size() < size)
    if (!read_more(socket, rest)) return false;
  request.body = rest.substr(0, size);
  rest.erase(0, size);
  return true;
}

}  // namespace

void FakeConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return close();
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void FakeConnection::send_head(int status, std::string_view content_type) {
  send(fmt::format("HTTP/1.1 {} Status\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n", status, content_type));
}

void FakeConnection::send_chunk(std::string_view bytes) { send(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)); }

void FakeConnection::send_json(int status, std::string_view text) {
  send(fmt::format("HTTP/1.1 {} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status, text.size(),
                   text));
}

void FakeConnection::pause(int milliseconds) {
  std::unique_lock lock(server_.mutex_);
  server_.ended_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return server_.is_dead_; });
}

FakeServer::FakeServer(Answer answer) : answer_(std::move(answer)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  QUIRE_CHECK(listener_ >= 0 && bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener_, 64) == 0);
  QUIRE_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

FakeServer::~FakeServer() {
  die();
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

void FakeServer::die() {
  const std::lock_guard lock(mutex_);
  is_dead_ = true;
  shutdown(listener_, SHUT_RDWR);
  for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  ended_.notify_all();
}

void FakeServer::accept_all() {
  for (;;) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    ++num_connections_;
    const std::lock_guard lock(mutex_);
    sockets_.push_back(socket);
    if (is_dead_) shutdown(socket, SHUT_RDWR);
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void FakeServer::serve(int socket) {
  std::string rest;
  for (;;) {
    FakeConnection connection(*this, socket);
    if (!read_request(socket, rest, connection)) break;
    answer_(connection);
    if (!connection.is_open()) break;
  }
  shutdown(socket, SHUT_RDWR);
}

std::string text_event(std::string_view text) {
  return fmt::format(R"(data: {{"choices":[{{"index":0,"text":"{}","finish_reason":null}}]}})"
                     "\n\n",
                     text);
}

std::string usage_event(int prompt, int completion) {
  return fmt::format(R"(data: {{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{}}}}})"
                     "\n\n",
                     prompt, completion);
}

}  // namespace quire::test
