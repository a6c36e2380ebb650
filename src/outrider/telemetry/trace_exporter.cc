#include "outrider/telemetry/trace_exporter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/telemetry/trace_json.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using Seconds = std::chrono::duration<double>;

std::chrono::nanoseconds Duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
}

// Sends a request and takes its answer. Throws what goes wrong, as what follows.
template <typename Stream>
asio::awaitable<void> Exchange(Stream& stream, http::request<http::string_body> request) {
  co_await http::async_write(stream, request, asio::use_awaitable);
  boost::beast::flat_buffer buffer;
  http::response<http::string_body> response;
  co_await http::async_read(stream, buffer, response, asio::use_awaitable);
  if (response.result_int() / 100 != 2) {
    throw std::runtime_error(fmt::format("status {}", response.result_int()));
  }
}

asio::awaitable<void> ExchangeOverTls(boost::beast::tcp_stream& plain, ssl::context& tls,
                                      const std::string& host,
                                      http::request<http::string_body> request) {
  ssl::stream<boost::beast::tcp_stream&> stream(plain, tls);
  stream.set_verify_mode(ssl::verify_peer);
  stream.set_verify_callback(ssl::host_name_verification(host));
  boost::system::error_code no_address;
  asio::ip::make_address(host, no_address);
  // Servers of several names choose their certificate by this one. Addresses are no names.
  if (no_address) SSL_set_tlsext_host_name(stream.native_handle(), host.c_str());
  co_await stream.async_handshake(ssl::stream_base::client, asio::use_awaitable);
  co_await Exchange(stream, std::move(request));
}

asio::awaitable<void> Post(const TracesEndpoint& endpoint, ssl::context* tls, double seconds,
                           std::string body) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::resolver resolver(executor);
  const auto addresses =
      co_await resolver.async_resolve(endpoint.host, endpoint.port, asio::use_awaitable);
  boost::beast::tcp_stream stream(executor);
  stream.expires_after(Duration(seconds));
  co_await stream.async_connect(addresses, asio::use_awaitable);
  http::request<http::string_body> request(http::verb::post, endpoint.path, 11);
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  request.set(http::field::host,
              fmt::format(fmt::runtime(ipv6 ? "[{}]:{}" : "{}:{}"), endpoint.host, endpoint.port));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = std::move(body);
  request.prepare_payload();
  if (tls == nullptr) {
    co_await Exchange(stream, std::move(request));
  } else {
    co_await ExchangeOverTls(stream, *tls, endpoint.host, std::move(request));
  }
}

}  // namespace

TracesEndpoint ParseTracesEndpoint(const std::string& where, const std::string& url) {
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kTls = "https://";
  const auto refuse = [&] {
    return InvalidArgument(
        "{}: '{}' is no address of a collector: give it as http://HOST:PORT or https://HOST:PORT, "
        "perhaps with a path",
        where, url);
  };
  const bool tls = url.starts_with(kTls);
  if (!tls && !url.starts_with(kPlain)) throw refuse();
  const std::string rest = url.substr((tls ? kTls : kPlain).size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string host = rest.substr(0, slash);
  TracesEndpoint endpoint{
      .host = {}, .port = tls ? "443" : "4318", .path = rest.substr(slash), .tls = tls};
  if (endpoint.path.size() <= 1) endpoint.path = "/v1/traces";
  const size_t colon = host.rfind(':');
  // A colon inside brackets belongs to an IPv6 address.
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    endpoint.port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool port_is_number = !endpoint.port.empty() && endpoint.port.size() <= 5 &&
                              endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !port_is_number || url.find_first_of(" \t\r\n") != std::string::npos) {
    throw refuse();
  }
  endpoint.host = std::move(host);
  return endpoint;
}

TraceExporter::TraceExporter(TracesEndpoint endpoint, const TraceExporterLimits& limits)
    : endpoint_(std::move(endpoint)), limits_(limits) {
  if (endpoint_.tls) {
    tls_.emplace(ssl::context::tls_client);
    tls_->set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    tls_->set_default_verify_paths();
  }
  thread_ = std::thread([this] { Run(); });
}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TraceExporter::Add(std::string span) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= limits_.max_waiting) {
    ++num_dropped_;
    return;
  }
  waiting_.push_back(std::move(span));
  changed_.notify_one();
}

int64_t TraceExporter::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void TraceExporter::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    changed_.wait_for(lock, Duration(limits_.batch_seconds),
                      [this] { return stopping_ || waiting_.size() >= limits_.max_batch; });
    const size_t size = std::min(waiting_.size(), limits_.max_batch);
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(size);
    const std::vector<std::string> batch(std::make_move_iterator(waiting_.begin()),
                                         std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    lock.unlock();
    Send(batch);
    lock.lock();
    if (failing_) num_dropped_ += static_cast<int64_t>(size);
    if (failing_ && stopping_) return;  // it will not take the rest either
  }
}

void TraceExporter::Send(const std::vector<std::string>& spans) {
  try {
    asio::io_context io(1);
    std::exception_ptr failure;
    bool sent = false;
    asio::co_spawn(
        io, Post(endpoint_, tls_ ? &*tls_ : nullptr, limits_.send_seconds, TracesJson(spans)),
        [&](std::exception_ptr error) {
          failure = std::move(error);
          sent = true;
        });
    io.run_for(Duration(limits_.send_seconds));
    if (!sent) throw std::runtime_error("no answer in time");
    if (failure) std::rethrow_exception(failure);
    failing_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(failing_, true)) {
      SPDLOG_WARN("traces cannot be sent to {}:{}{} and are dropped: {}", endpoint_.host,
                  endpoint_.port, endpoint_.path, error.what());
    }
  }
}

}  // namespace outrider
