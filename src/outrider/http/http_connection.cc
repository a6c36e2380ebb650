// Longer than most files: reading, answering and closing share what one connection knows.
#include "outrider/http/http_connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/memory_shortage.h"
#include "outrider/http/http_head.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// Unparsed input beyond this is left in the socket: a client that pipelines more waits.
constexpr size_t kMaxInput = size_t{64} << 10;
constexpr double kLingerSeconds = 2;
// Larger bodies are written in pieces of this size, without a second copy of the body.
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr std::string_view kLastChunk = "0\r\n\r\n";

std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 40> text;
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text.data(), size};
}

}  // namespace

// A body in a string that grows as bytes come: what a client only promises takes no memory.
struct GrowingBody {
  using value_type = std::string;

  class reader {  // NOLINT(readability-identifier-naming): Beast's name for it
   public:
    template <bool kIsRequest, typename Fields>
    reader(http::header<kIsRequest, Fields>& /*head*/, std::string& body) : body_(body) {}

    // NOLINTBEGIN(readability-identifier-naming)
    void init(const boost::optional<uint64_t>& /*length*/, error_code& error) { error = {}; }

    template <typename Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      const size_t before = body_.size();
      for (auto part = asio::buffer_sequence_begin(buffers);
           part != asio::buffer_sequence_end(buffers); ++part) {
        const asio::const_buffer bytes = *part;
        body_.append(static_cast<const char*>(bytes.data()), bytes.size());
      }
      error = {};
      return body_.size() - before;
    }

    void finish(error_code& error) { error = {}; }
    // NOLINTEND(readability-identifier-naming)

   private:
    std::string& body_;
  };
};

struct HttpConnection::Parser {
  http::request_parser<GrowingBody> http;
  std::optional<HttpResponse> refusal;
};

HttpConnection::HttpConnection(Socket socket, HttpServerState& server)
    : stream_(std::move(socket), server.tls ? &*server.tls : nullptr),
      server_(server),
      peer_(stream_.PeerAddress()),
      signal_timer_(stream_.get_executor(), Clock::time_point::max()),
      input_space_timer_(stream_.get_executor(), Clock::time_point::max()) {}

void HttpConnection::Start() {
  SetPhase(Phase::kOpen, server_.limits.header_seconds);
  Spawn(&HttpConnection::Open);
}

void HttpConnection::Spawn(Coroutine coroutine) {
  const auto self = shared_from_this();
  asio::co_spawn(
      stream_.get_executor(), [self, coroutine] { return ((*self).*coroutine)(); },
      [self, coroutine](const std::exception_ptr& failure) {
        if (failure) self->OnFailure(coroutine, failure);
      });
}

// A connection for which there is no memory ends alone.
void HttpConnection::OnFailure(Coroutine coroutine, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    OnPeerGone(true);
    // The others end by themselves.
    if (coroutine != &HttpConnection::ReadLoop) EndConnection();
    SPDLOG_WARN("too little memory: a connection was closed");
  }
}

void HttpConnection::EndConnection() {
  phase_ = Phase::kClosed;
  stream_.Close();
  input_space_timer_.cancel();
  server_.on_closed(this);
}

asio::awaitable<void> HttpConnection::Open() {
  const bool opened = co_await stream_.Open();
  if (opened && !peer_gone_) {
    Spawn(&HttpConnection::ServeLoop);
    Spawn(&HttpConnection::ReadLoop);
    co_return;
  }
  EndConnection();
}

void HttpConnection::Signal() {
  signalled_ = true;
  signal_timer_.cancel();
}

asio::awaitable<void> HttpConnection::WaitForSignal() {
  error_code ignored;
  while (!signalled_) {
    co_await signal_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  signalled_ = false;
}

void HttpConnection::SetPhase(Phase phase, double seconds) {
  phase_ = phase;
  deadline_ = Clock::now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void HttpConnection::CheckTime(Clock::time_point now) {
  if (signalled_) signal_timer_.cancel();  // a signal that found no memory comes late
  if (phase_ == Phase::kAnswer) {
    const std::chrono::duration<double> silence = now - last_write_;
    heartbeat_due_ = !heartbeat_.empty() && silence.count() >= server_.limits.heartbeat_seconds;
    const bool again = produce_every_ > 0 && silence.count() >= produce_every_;
    if (heartbeat_due_ || again) Signal();
  } else if (now > deadline_) {
    if (phase_ == Phase::kOpen) {
      OnPeerGone(true);
    } else if (phase_ == Phase::kWrite) {
      spdlog::debug("a client did not read for {} s: disconnected", server_.limits.write_seconds);
      OnPeerGone(true);
    } else {
      timed_out_ = true;
      Signal();
    }
  }
}

bool HttpConnection::IsIdle() const {
  return phase_ == Phase::kOpen || (phase_ == Phase::kIdle && (input_.empty() || input_ == "\r"));
}

void HttpConnection::Cancel() {
  if (!producer_) return;
  producer_->Cancel();
  Signal();
}

void HttpConnection::Close() {
  if (phase_ != Phase::kClosed) OnPeerGone(true);
}

void HttpConnection::Release() {
  const std::shared_ptr<HttpProducer> producer = std::exchange(producer_, nullptr);
  if (producer) producer->Abandon();
}

void HttpConnection::OnPeerGone(bool broken) {
  peer_gone_ = true;
  Release();
  if (broken) stream_.Close();
  Signal();
}

asio::awaitable<void> HttpConnection::ReadLoop() {
  error_code error;
  for (;;) {
    while (input_.size() >= kMaxInput && phase_ != Phase::kClosed) {
      co_await input_space_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
    const size_t size = co_await stream_.ReadSome(asio::buffer(read_buffer_), error);
    if (phase_ == Phase::kClosed) co_return;
    if (error) {
      OnPeerGone(error != asio::error::eof);
      co_return;
    }
    if (phase_ == Phase::kLinger) continue;
    input_.append(read_buffer_.data(), size);
    if (phase_ != Phase::kAnswer && phase_ != Phase::kWrite) Signal();
  }
}

asio::awaitable<void> HttpConnection::ServeLoop() {
  // A variable of its own: GCC 12 lays out the frame of a coroutine that has none in two ways.
  bool more = true;
  while (more) more = co_await ServeOne();
  if (!peer_gone_) co_await Linger();
  EndConnection();
}

asio::awaitable<bool> HttpConnection::ServeOne() {
  Parser parser;
  parser.http.header_limit(static_cast<uint32_t>(server_.limits.max_header_bytes));
  parser.http.body_limit(static_cast<uint64_t>(server_.limits.max_body_bytes));
  std::optional<HttpRequest> request = co_await ReadRequest(parser);
  if (parser.refusal) {
    // What is left of a refused request's body is not worth reading.
    if (!parser.http.is_done()) keep_alive_ = false;
    co_return co_await Refuse(std::move(*parser.refusal));
  }
  if (!request) co_return false;
  co_return co_await Answer(std::move(*request));
}

// Nothing: a refusal is in the parser, or there is nobody to answer.
asio::awaitable<std::optional<HttpRequest>> HttpConnection::ReadRequest(Parser& parser) {
  HttpRequest request;
  request.peer = peer_;
  const auto share = std::make_shared<HttpBodyShare>(
      server_.bodies, static_cast<size_t>(server_.limits.free_body_bytes));
  request.body_share = share;
  cors_headers_.clear();
  bool head_seen = false;
  int64_t head_size = 0;
  SetPhase(Phase::kIdle, server_.limits.idle_seconds);
  if (IsIdle()) server_.on_idle(this);
  timed_out_ = false;
  for (;;) {
    // Some clients end a body with an extra line (RFC 9112, section 2.2).
    while (phase_ == Phase::kIdle && input_.starts_with("\r\n")) input_.erase(0, 2);
    const bool half_a_line = phase_ == Phase::kIdle && input_ == "\r";
    if (!input_.empty() && !half_a_line && phase_ == Phase::kIdle) {
      SetPhase(Phase::kHead, server_.limits.header_seconds);
    }
    error_code error;
    size_t used = 0;
    bool has_memory = true;
    while (!half_a_line && used < input_.size() && !parser.http.is_done() && !error) {
      try {
        const FailsAlone scope;
        used += parser.http.put(asio::buffer(input_.data() + used, input_.size() - used), error);
        has_memory = share->GrowTo(parser.http.get().body().size());
      } catch (const std::bad_alloc&) {
        has_memory = false;
      }
      if (!has_memory || (parser.http.is_header_done() && !head_seen)) break;
    }
    if (!has_memory) {
      parser.http.get().body() = {};
      parser.refusal = server_.application->RefusalOf(
          request, 503,
          "the server has too little memory for another body of this size now; try again later");
      keep_alive_ = false;
      co_return std::nullopt;
    }
    input_.erase(0, used);
    input_space_timer_.cancel();
    if (!head_seen) {
      // Beast's own limit is for what comes after the fields that it has taken.
      head_size += static_cast<int64_t>(used);
      if (head_size > server_.limits.max_header_bytes) error = http::error::header_limit;
    }
    if (error && error != http::error::need_more) {
      // A refusal has the form of the route, if that is known.
      const auto target = parser.http.get().target();
      if (!head_seen && !target.empty()) SetTarget(target, &request);
      const int status = error == http::error::header_limit ? 431
                         : error == http::error::body_limit ? 413
                                                            : 400;
      const std::string message =
          status == 431   ? fmt::format("the request's head is larger than {} bytes",
                                        server_.limits.max_header_bytes)
          : status == 413 ? fmt::format("the request's body is larger than {} bytes",
                                        server_.limits.max_body_bytes)
                          : fmt::format("not a valid HTTP request: {}", error.message());
      parser.refusal = server_.application->RefusalOf(request, status, message);
      http_1_0_ = false;
      head_only_ = false;
      keep_alive_ = false;
      co_return std::nullopt;
    }
    if (parser.http.is_header_done() && !head_seen) {
      head_seen = true;
      const auto& message = parser.http.get();
      http_1_0_ = message.version() < 11;
      keep_alive_ = parser.http.keep_alive();
      request.method = std::string(message.method_string());
      head_only_ = request.method == "HEAD";
      SetTarget(message.target(), &request);
      for (const auto& field : message) {
        request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
      }
      if (const auto fault = FindHeadFault(request, http_1_0_)) {
        parser.refusal =
            server_.application->RefusalOf(request, fault->status, std::string(fault->reason));
        keep_alive_ = false;
        co_return std::nullopt;
      }
      cors_headers_ = server_.cors.HeadersFor(request);
      parser.refusal = server_.cors.AnswerPreflight(request);
      if (!parser.refusal) parser.refusal = server_.application->CheckHead(request);
      if (parser.refusal) co_return std::nullopt;
      SetPhase(Phase::kBody, server_.limits.body_seconds);
      if (!parser.http.is_done() && input_.empty() && request.Header("Expect")) {
        output_ = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await Write()) co_return std::nullopt;
        SetPhase(Phase::kBody, server_.limits.body_seconds);
      }
      continue;
    }
    if (parser.http.is_done()) {
      request.body = std::move(parser.http.get().body());
      co_return request;
    }
    if (peer_gone_) co_return std::nullopt;
    if (timed_out_) {
      if (phase_ != Phase::kIdle) {
        parser.refusal =
            server_.application->RefusalOf(request, 408,
                                           fmt::format("the request's {} did not arrive in time",
                                                       phase_ == Phase::kHead ? "head" : "body"));
        keep_alive_ = false;
      }
      co_return std::nullopt;
    }
    co_await WaitForSignal();
  }
}

asio::awaitable<bool> HttpConnection::Refuse(HttpResponse response) {
  AppendHead(response, response.body.size());
  if (!head_only_) output_ += response.body;
  const bool written = co_await Write();
  co_return written&& keep_alive_;
}

asio::awaitable<bool> HttpConnection::Answer(HttpRequest request) {
  phase_ = Phase::kAnswer;
  last_write_ = Clock::now();
  heartbeat_.clear();
  produce_every_ = 0;
  heartbeat_due_ = false;
  chunked_ = false;
  producer_ = server_.application->Handle(
      std::move(request), HttpWaker([list = server_.wake_list, connection = weak_from_this()] {
        list->Add(connection);
      }));
  for (;;) {
    HttpOutput out;
    producer_->Produce(&out);
    if (out.head) {
      const bool whole = out.end;
      chunked_ = !whole && !http_1_0_;
      if (!whole && http_1_0_) keep_alive_ = false;  // the end of the connection ends the body
      AppendHead(*out.head, whole ? std::optional<size_t>(out.body.size()) : std::nullopt);
      heartbeat_ = std::move(out.heartbeat);
      produce_every_ = out.produce_every;
    } else if (heartbeat_due_ && out.body.empty() && !out.end) {
      out.body = heartbeat_;
    }
    heartbeat_due_ = false;
    const bool large = !head_only_ && out.body.size() > kPieceBytes;
    if (!head_only_) {
      if (large && chunked_) AppendChunkSize(out.body.size());
      if (!large && !out.body.empty()) AppendChunk(out.body);
      if (!large && out.end && chunked_) output_ += kLastChunk;
    }
    const bool wrote = large || !output_.empty();
    bool written = true;
    if (!output_.empty()) written = co_await Write();
    if (large && written) written = co_await WriteLarge(out);
    if (!written) {
      Release();
      co_return false;
    }
    if (out.end) {
      producer_.reset();
      co_return keep_alive_;
    }
    if (!producer_) co_return false;  // abandoned while writing
    if (wrote) continue;
    if (peer_gone_) {
      Release();
      co_return false;
    }
    co_await WaitForSignal();
    if (!producer_) co_return false;
  }
}

asio::awaitable<bool> HttpConnection::Write() {
  const bool written = co_await WriteBytes(output_);
  output_.clear();
  co_return written;
}

asio::awaitable<bool> HttpConnection::WriteBytes(std::string_view bytes) {
  SetPhase(Phase::kWrite, server_.limits.write_seconds);
  error_code error;
  co_await stream_.Write(asio::buffer(bytes.data(), bytes.size()), error);
  phase_ = Phase::kAnswer;
  last_write_ = Clock::now();
  co_return !error;
}

// Writes a body's bytes, and what ends its chunk, without a copy of it. Each piece has its own
// time.
asio::awaitable<bool> HttpConnection::WriteLarge(const HttpOutput& out) {
  const std::string_view body = out.body;
  for (size_t written = 0; written < body.size(); written += kPieceBytes) {
    const std::string_view piece = body.substr(written, kPieceBytes);
    const bool taken = co_await WriteBytes(piece);
    if (!taken) co_return false;
  }
  if (!chunked_) co_return true;
  output_ = "\r\n";
  if (out.end) output_ += kLastChunk;
  const bool ended = co_await Write();
  co_return ended;
}

// A socket closed with unread input would reset the connection and could destroy the answer on its
// way: say that no more comes, then read until the client closes.
asio::awaitable<void> HttpConnection::Linger() {
  SetPhase(Phase::kLinger, kLingerSeconds);
  timed_out_ = false;
  input_.clear();
  input_space_timer_.cancel();
  error_code error;
  stream_.EndWriting(shared_from_this(), error);
  while (!error && !peer_gone_ && !timed_out_) co_await WaitForSignal();
}

void HttpConnection::AppendHead(const HttpResponse& response,
                                std::optional<size_t> content_length) {
  if (server_.draining) keep_alive_ = false;
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)));
  auto out = std::back_inserter(output_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nServer: outrider\r\nDate: {}\r\n", response.status,
                 std::string_view(reason.data(), reason.size()), HttpDate());
  if (!response.content_type.empty()) {
    fmt::format_to(out, "Content-Type: {}\r\n", response.content_type);
  }
  for (const HttpHeader& header : response.headers) {
    fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  }
  for (const HttpHeader& header : cors_headers_) {
    fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  }
  const bool has_body = response.status != 204;  // else no length either: RFC 9110, section 8.6
  if (has_body && content_length) {
    fmt::format_to(out, "Content-Length: {}\r\n", *content_length);
  } else if (has_body && !http_1_0_) {
    output_ += "Transfer-Encoding: chunked\r\n";
  }
  if (!keep_alive_) {
    output_ += "Connection: close\r\n";
  } else if (http_1_0_) {
    output_ += "Connection: keep-alive\r\n";
  }
  output_ += "\r\n";
}

void HttpConnection::AppendChunkSize(size_t size) {
  fmt::format_to(std::back_inserter(output_), "{:x}\r\n", size);
}

void HttpConnection::AppendChunk(const std::string& data) {
  if (chunked_) {
    AppendChunkSize(data.size());
    output_ += data;
    output_ += "\r\n";
  } else {
    output_ += data;
  }
}

}  // namespace outrider
