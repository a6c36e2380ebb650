#include "outrider/http/http_post_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "outrider/http/http_stream.h"
#include "outrider/http/tls_context.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAskEvery{50};

void ThrowIf(const error_code& error) {
  if (error) throw std::runtime_error(error.message());
}

// One answer as it arrives.
class AnswerParser {
 public:
  AnswerParser() { parser_.body_limit(boost::none); }

  bool is_done() const { return parser_.is_done(); }

  /// Takes from the front of `input` what belongs to the answer.
  void Take(const HttpPost& post, std::string* input) {
    error_code error;
    size_t used = 0;
    while (used < input->size() && !parser_.is_done() && !error) {
      used += parser_.put(asio::buffer(input->data() + used, input->size() - used), error);
    }
    input->erase(0, used);
    if (error != http::error::need_more) ThrowIf(error);
    Deliver(post);
  }

  /// The connection has ended, which is the end of an answer that gives no length.
  void TakeEnd(const HttpPost& post) {
    error_code error = http::error::end_of_stream;
    if (parser_.got_some()) parser_.put_eof(error);
    ThrowIf(error);
    Deliver(post);
  }

 private:
  void Deliver(const HttpPost& post) {
    if (!parser_.is_header_done()) return;
    const std::string piece = std::exchange(parser_.get().body(), {});
    post.on_answer(static_cast<int>(parser_.get().result_int()), piece, parser_.is_done());
  }

  http::response_parser<http::string_body> parser_;
};

}  // namespace

class HttpPostClient::Impl {
 public:
  explicit Impl(Server server) : server_(std::move(server)) {
    if (server_.tls) tls_.emplace(MakeClientTlsContext());
  }

  asio::awaitable<void> Connection(const std::function<std::optional<HttpPost>()>& next) {
    HttpStream stream(co_await Connect(), tls_ ? &*tls_ : nullptr);
    co_await stream.OpenAsClient(server_.host);
    std::string input;  // received, not yet parsed
    bool last = false;
    while (!last) {
      const std::optional<HttpPost> post = next();
      if (!post) co_return;
      co_await Exchange(stream, *post, input);
      last = post->last;
    }
  }

 private:
  // The first of the host's addresses that takes a connection.
  asio::awaitable<HttpStream::Socket> Connect() {
    const auto executor = co_await asio::this_coro::executor;
    tcp::resolver resolver(executor);
    error_code error;
    const tcp::resolver::results_type addresses = co_await resolver.async_resolve(
        server_.host, server_.port, asio::redirect_error(asio::use_awaitable, error));
    ThrowIf(error);
    HttpStream::Socket socket(executor);
    for (const auto& address : addresses) {
      socket.close(error);
      const HttpStream::Socket::endpoint_type endpoint(address.endpoint());
      co_await socket.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, error));
      if (!error) break;
    }
    ThrowIf(error);
    co_return socket;
  }

  asio::awaitable<void> Exchange(HttpStream& stream, const HttpPost& post, std::string& input) {
    const bool ipv6 = server_.host.find(':') != std::string::npos;
    const std::string request = fmt::format(
        "POST {} HTTP/1.1\r\nHost: {}{}{}:{}\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n{}{}\r\n{}",
        post.target, ipv6 ? "[" : "", server_.host, ipv6 ? "]" : "", server_.port, post.body.size(),
        post.bearer.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", post.bearer),
        post.last ? "Connection: close\r\n" : "", post.body);
    error_code error;
    co_await stream.Write(asio::buffer(request), error);
    ThrowIf(error);
    AnswerParser answer;
    answer.Take(post, &input);
    std::array<char, 8192> buffer;
    while (!answer.is_done()) {
      const size_t size = co_await stream.ReadSome(asio::buffer(buffer), error);
      if (error == asio::error::eof) {
        answer.TakeEnd(post);
        co_return;
      }
      ThrowIf(error);
      input.append(buffer.data(), size);
      answer.Take(post, &input);
    }
  }

  const Server server_;
  std::optional<asio::ssl::context> tls_;
};

HttpPostClient::HttpPostClient(Server server) : impl_(std::make_unique<Impl>(std::move(server))) {}

HttpPostClient::~HttpPostClient() = default;

bool HttpPostClient::Run(size_t connections, const std::function<std::optional<HttpPost>()>& next,
                         const std::function<bool()>& give_up) {
  std::exception_ptr failure;
  asio::io_context io(1);
  for (size_t i = 0; i < connections; ++i) {
    asio::co_spawn(io, impl_->Connection(next), [&](const std::exception_ptr& error) {
      if (!error || failure) return;
      failure = error;
      io.stop();
    });
  }
  for (;;) {
    io.run_for(kAskEvery);
    if (failure) std::rethrow_exception(failure);
    if (io.stopped()) return true;
    if (give_up()) return false;
  }
}

}  // namespace outrider
