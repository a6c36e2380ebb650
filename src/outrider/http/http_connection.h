// One client's connection. Two coroutines run on it: one always reads, so that a client that goes
// away is noticed at once, the other parses requests and writes answers.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/http/cors.h"
#include "outrider/http/http_body_budget.h"
#include "outrider/http/http_message.h"
#include "outrider/http/http_server.h"
#include "outrider/http/http_stream.h"
#include "outrider/http/http_wake_list.h"

namespace outrider {

/// For coroutines that nobody waits for and the server needs: what they throw ends the I/O thread
/// instead of being lost.
inline void RethrowFailure(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

/// What the connections of a server share. Used on the I/O thread only.
struct HttpServerState {
  HttpLimits limits;
  HttpApplication* application = nullptr;
  Cors cors{CorsOptions{}};
  std::optional<boost::asio::ssl::context> tls;
  std::shared_ptr<HttpWakeList> wake_list;
  std::shared_ptr<HttpBodyBudget> bodies;
  bool draining = false;
  std::function<void(HttpConnection*)> on_closed;
  std::function<void(HttpConnection*)> on_idle;  // waits for a request
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = HttpStream::Socket;
  using Clock = std::chrono::steady_clock;

  HttpConnection(Socket socket, HttpServerState& server);

  void Start();
  /// The producer may have something to send.
  void OnWake() { Signal(); }
  /// Looks at the clock: ends what takes too long, sends heartbeats.
  void CheckTime(Clock::time_point now);
  /// Whether nothing of a request has come since the last answer.
  bool IsIdle() const;
  /// The server has waited long enough: the running answer ends with an error.
  void Cancel();
  /// Ends the connection now.
  void Close();

 private:
  enum class Phase { kOpen, kIdle, kHead, kBody, kAnswer, kWrite, kLinger, kClosed };
  struct Parser;

  using Coroutine = boost::asio::awaitable<void> (HttpConnection::*)();

  void Spawn(Coroutine coroutine);
  void OnFailure(Coroutine coroutine, const std::exception_ptr& failure);
  boost::asio::awaitable<void> Open();
  boost::asio::awaitable<void> ReadLoop();
  boost::asio::awaitable<void> ServeLoop();
  boost::asio::awaitable<bool> ServeOne();
  boost::asio::awaitable<std::optional<HttpRequest>> ReadRequest(Parser& parser);
  boost::asio::awaitable<bool> Answer(HttpRequest request);
  boost::asio::awaitable<bool> Refuse(HttpResponse response);
  boost::asio::awaitable<bool> Write();  // output_
  boost::asio::awaitable<bool> WriteBytes(std::string_view bytes);
  boost::asio::awaitable<bool> WriteLarge(const HttpOutput& out);
  boost::asio::awaitable<void> WaitForSignal();
  boost::asio::awaitable<void> Linger();
  void Signal();
  void SetPhase(Phase phase, double seconds);
  void OnPeerGone(bool broken);
  void Release();
  void EndConnection();
  void AppendHead(const HttpResponse& response, std::optional<size_t> content_length);
  void AppendChunkSize(size_t size);
  void AppendChunk(const std::string& data);

  HttpStream stream_;
  HttpServerState& server_;
  const std::string peer_;                  // HttpRequest::peer
  boost::asio::steady_timer signal_timer_;  // never expires; cancelled to resume ServeLoop
  boost::asio::steady_timer
      input_space_timer_;  // cancelled to resume ReadLoop, which waits for room in `input_`
  bool signalled_ = false;

  Phase phase_ = Phase::kOpen;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point last_write_;
  bool timed_out_ = false;
  bool heartbeat_due_ = false;
  bool peer_gone_ = false;

  std::array<char, 8192> read_buffer_;
  std::string input_;      // received, not yet parsed
  std::string output_;     // being written
  std::string heartbeat_;  // of the stream that is being answered
  double produce_every_ = 0;
  std::shared_ptr<HttpProducer> producer_;
  // Headers for the request being answered.
  std::vector<HttpHeader> cors_headers_;
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
};

}  // namespace outrider
