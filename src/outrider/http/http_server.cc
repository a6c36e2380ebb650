#include "outrider/http/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "outrider/base/end_process.h"
#include "outrider/base/error.h"
#include "outrider/base/memory_shortage.h"
#include "outrider/http/http_connection.h"
#include "outrider/http/http_listener.h"
#include "outrider/http/http_wake_list.h"
#include "outrider/http/stop_signals.h"
#include "outrider/http/tls_context.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// How often deadlines are looked at, and how long a full process waits before it accepts again.
constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kCancelGrace{1};  // for answers that were cancelled at shutdown
constexpr double kEndSeconds = 1;                // for threads to end after that
constexpr double kFailedSeconds = 1;             // in which all are refused once the engine failed

// Thousands of streams need thousands of descriptors; the soft limit is often 1024.
void RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    SPDLOG_WARN("the limit of open files stays at {}: {}", before, std::strerror(errno));
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, HttpApplication& application)
      : options_(std::move(options)), listener_(io_, options_), tick_(io_), stop_timer_(io_) {
    RaiseOpenFileLimit();
    state_.cors = Cors(options_.cors);
    if (options_.tls) state_.tls.emplace(MakeTlsContext(*options_.tls));
    state_.limits = options_.limits;
    state_.application = &application;
    state_.bodies =
        std::make_shared<HttpBodyBudget>(static_cast<size_t>(options_.limits.max_bodies_bytes));
    state_.wake_list =
        std::make_shared<HttpWakeList>([this] { asio::post(io_, [this] { WakeWaiting(); }); });
    state_.on_closed = [this](HttpConnection* connection) {
      connections_.erase(connection);
      OnFinished(connection);
    };
    state_.on_idle = [this](HttpConnection* connection) { OnFinished(connection); };
  }

  ~Impl() { state_.wake_list->Close(); }

  void Run() {
    asio::co_spawn(io_, AcceptLoop(), RethrowFailure);
    asio::co_spawn(io_, TickLoop(), RethrowFailure);
    std::optional<StopSignals> signals;
    if (options_.handle_signals) {
      WaitForMemoryFromNowOn();
      signals.emplace(
          [this] {
            SPDLOG_INFO("stopping: requests get at most {} s; a second signal ends at once",
                        options_.shutdown_seconds);
            Stop();
          },
          [this] {
            EndProcessWithin(kEndSeconds);
            io_.stop();
          });
    }
    RunLoop();
    error_code ignored;
    listener_.acceptor().close(ignored);  // who comes now is told by the system
    // Answers that never finished: their requests must not run on in the engine.
    for (auto& [key, connection] : std::exchange(connections_, {})) connection->Close();
  }

  void Stop() { StopWithin(options_.shutdown_seconds, /*failed=*/false); }
  void StopAfterFailure() { StopWithin(kFailedSeconds, /*failed=*/true); }

  const HttpListener& listener() const { return listener_; }
  int64_t body_bytes() const { return static_cast<int64_t>(state_.bodies->used()); }

 private:
  // What finds no memory is lost alone: a connection, or one of its steps.
  void RunLoop() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::bad_alloc&) {
        ++num_without_memory_;  // told by TickLoop
      }
    }
  }

  // False: there are too many, or there is no memory for one more.
  bool TryStart(HttpConnection::Socket socket) {
    if (connections_.size() >= options_.limits.max_connections) {
      // As much of an answer as fits into the socket's buffer: all of it.
      constexpr std::string_view kTooMany =
          "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
          "Connection: close\r\n\r\n";
      error_code ignored;
      socket.non_blocking(true, ignored);
      if (!options_.tls) socket.write_some(asio::buffer(kTooMany), ignored);
      return false;
    }
    try {
      auto connection = std::make_shared<HttpConnection>(std::move(socket), state_);
      connections_.emplace(connection.get(), connection);
      connection->Start();
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  asio::awaitable<void> AcceptLoop() {
    asio::steady_timer pause(io_);
    bool warned = false;
    bool full = false;
    for (;;) {
      HttpConnection::Socket socket(io_);
      error_code error;
      co_await listener_.acceptor().async_accept(socket,
                                                 asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {
        if (!std::exchange(warned, true)) {
          SPDLOG_WARN("cannot accept a connection: {}", error.message());
        }
        pause.expires_after(kTick);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      warned = false;
      if (options_.uds.empty()) socket.set_option(tcp::no_delay(true), error);
      const bool taken = TryStart(std::move(socket));
      if (!taken && !full) {
        SPDLOG_WARN("{} connections are all that this server takes: more are refused",
                    connections_.size());
      }
      full = !taken;
    }
  }

  asio::awaitable<void> TickLoop() {
    error_code ignored;
    for (;;) {
      tick_.expires_after(kTick);
      co_await tick_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      WakeWaiting();
      const Clock::time_point now = Clock::now();
      for (auto& [key, connection] : connections_) connection->CheckTime(now);
      if (state_.draining) EndIfFinished();
      if (num_without_memory_ > 0) {
        SPDLOG_WARN("too little memory: {} steps of connections were lost",
                    std::exchange(num_without_memory_, 0));
      }
    }
  }

  void WakeWaiting() {
    for (const auto& waiting : state_.wake_list->Take()) {
      if (const auto connection = waiting.lock()) connection->OnWake();
    }
  }

  void OnFinished(HttpConnection* connection) {
    if (state_.draining && to_finish_.erase(connection) != 0) EndIfFinished();
  }

  void StopWithin(double seconds, bool failed) {
    if (options_.handle_signals) {
      EndProcessWithin(seconds + static_cast<double>(kCancelGrace.count()) + kEndSeconds);
    }
    asio::post(io_, [this, seconds, failed] { BeginStop(seconds, failed); });
  }

  // New requests are still answered, with refusals, until the old ones are done. That is so on
  // connections that are kept, too: closing them could meet a request that is on its way.
  void BeginStop(double seconds, bool failed) {
    if (failed_ || (state_.draining && !failed)) return;
    failed_ = failed;
    if (!std::exchange(state_.draining, true)) {
      state_.application->OnDrain();
      for (const auto& [key, connection] : connections_) {
        if (!connection->IsIdle()) to_finish_.emplace(key, connection);
      }
    }
    stop_timer_.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
    stop_timer_.async_wait([this, seconds](error_code error) {
      if (error) return;
      failed_ = false;
      const size_t unfinished = CountUnfinished();
      if (unfinished == 0) return io_.stop();
      SPDLOG_WARN("{} requests did not finish in {} s: cancelled", unfinished, seconds);
      for (auto& [key, connection] : to_finish_) connection->Cancel();
      state_.application->CancelOthers();
      stop_timer_.expires_after(kCancelGrace);
      stop_timer_.async_wait([this](error_code) { io_.stop(); });
    });
    EndIfFinished();
  }

  size_t CountUnfinished() const { return to_finish_.size() + state_.application->CountOthers(); }

  void EndIfFinished() {
    if (!failed_ && CountUnfinished() == 0) io_.stop();
  }

  using Connections = std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>>;

  HttpServerOptions options_;
  HttpServerState state_;
  asio::io_context io_{1};
  HttpListener listener_;
  asio::steady_timer tick_;
  asio::steady_timer stop_timer_;
  Connections connections_;
  int num_without_memory_ = 0;
  Connections to_finish_;  // at shutdown: those that had a request when it began
  bool failed_ = false;    // StopAfterFailure: its second has not passed
};

HttpServer::HttpServer(HttpServerOptions options, HttpApplication& application)
    : impl_(std::make_unique<Impl>(std::move(options), application)) {}
HttpServer::~HttpServer() = default;
void HttpServer::Run() { impl_->Run(); }
void HttpServer::Stop() { impl_->Stop(); }
void HttpServer::StopAfterFailure() { impl_->StopAfterFailure(); }
uint16_t HttpServer::port() const { return impl_->listener().port(); }
std::string HttpServer::address() const { return impl_->listener().address(); }
int64_t HttpServer::body_bytes() const { return impl_->body_bytes(); }

void HttpServer::CheckAddress(const HttpServerOptions& options) {
  asio::io_context io;
  const HttpListener listener(io, options);
}

}  // namespace outrider
