// FakeServer: an HTTP server on loopback that answers as a test tells it, down to the bytes: well, slowly, wrongly, half, or not
// at all. Plain sockets and a thread for each connection, so that nothing is between the test and the wire.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace quire::test {

class FakeServer;

// One connection, while a request of it is answered.
class FakeConnection {
 public:
  FakeConnection(FakeServer& server, int socket) : server_(server), socket_(socket) {}

  std::string method, target, head, body;  // of the request

  void send(std::string_view bytes);
  void send_head(int status, std::string_view content_type);  // of a chunked answer
  void send_chunk(std::string_view bytes);
  void send_last_chunk() { send("0\r\n\r\n"); }
  void send_json(int status, std::string_view body);  // an answer with its length
  void pause(int milliseconds);                       // or until the server ends
  void stall() { pause(1 << 30); }
  void close() { is_open_ = false; }  // after this answer
  bool is_open() const { return is_open_; }

 private:
  FakeServer& server_;
  int socket_;
  bool is_open_ = true;
};

class FakeServer {
 public:
  using Answer = std::function<void(FakeConnection&)>;

  explicit FakeServer(Answer answer);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/v1"; }
  int num_connections() const { return num_connections_; }
  // Closes the door and every connection, as a process that dies. May be called from an answer.
  void die();

 private:
  friend class FakeConnection;
  void accept_all();
  void serve(int socket);

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> num_connections_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_dead_ = false;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// Server-sent events as an OpenAI endpoint writes them.
std::string text_event(std::string_view text);        // of /completions
std::string usage_event(int prompt, int completion);  // without choices
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace quire::test
