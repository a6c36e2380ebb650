// Whatever a client sends, in whatever pieces: well-formed responses, the same however the bytes
// were cut, requests within the limits, and an end of the connection when the client leaves.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/http/http_connection.h"

namespace {

namespace asio = boost::asio;
using outrider::HttpConnection;
using outrider::HttpRequest;
using outrider::HttpResponse;

constexpr int64_t kMaxHeader = 256;
constexpr int64_t kMaxBody = 512;

HttpResponse Text(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

/// Answers in pieces.
class Pieces : public outrider::HttpProducer {
 public:
  void Produce(outrider::HttpOutput* output) override {
    if (sent_ == 0) output->head = Text(200, "");
    output->body = "piece";
    output->end = ++sent_ == 3;
  }
  void Abandon() override {}
  void Cancel() override {}

 private:
  int sent_ = 0;
};

class Application : public outrider::HttpApplication {
 public:
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override {
    OUTRIDER_CHECK(!head.method.empty());
    size_t size = 0;
    for (const outrider::HttpHeader& header : head.headers) {
      OUTRIDER_CHECK(header.value.find_first_of("\r\n") == std::string::npos);
      size += header.name.size() + header.value.size();
    }
    OUTRIDER_CHECK(size <= kMaxHeader, "{} bytes of headers", size);
    if (!head.path.starts_with("/no")) return std::nullopt;
    return Text(404, "no");
  }
  std::shared_ptr<outrider::HttpProducer> Handle(HttpRequest request,
                                                 outrider::HttpWaker) override {
    OUTRIDER_CHECK(request.body.size() <= kMaxBody, "a body of {} bytes", request.body.size());
    if (request.path.starts_with("/pieces")) return std::make_shared<Pieces>();
    return outrider::MakeReadyProducer(Text(200, std::move(request.body)));
  }
  HttpResponse RefusalOf(const HttpRequest&, int status, const std::string& message) override {
    return Text(status, message);
  }
  void OnDrain() override {}
};

/// What the server says to `pieces`, until it has nothing more to say; then the client leaves.
std::string Talk(const std::vector<std::string_view>& pieces, bool late) {
  asio::io_context io;
  Application application;
  outrider::HttpServerState state;
  state.limits.max_header_bytes = kMaxHeader;
  state.limits.max_body_bytes = kMaxBody;
  state.bodies = std::make_shared<outrider::HttpBodyBudget>(size_t{1} << 20);
  state.application = &application;
  state.cors = outrider::Cors({.allowed_origins = {"*"}});
  state.wake_list = std::make_shared<outrider::HttpWakeList>([] {});
  bool closed = false;
  state.on_closed = [&](HttpConnection*) { closed = true; };
  state.on_idle = [](HttpConnection*) {};

  asio::local::stream_protocol::socket client(io);
  asio::local::stream_protocol::socket server(io);
  asio::local::connect_pair(client, server);
  client.non_blocking(true);
  auto connection =
      std::make_shared<HttpConnection>(HttpConnection::Socket(std::move(server)), state);
  std::string answer;
  const auto run = [&] {
    std::array<char, 4096> buffer;
    boost::system::error_code error;
    do {
      io.restart();
      while (io.poll() > 0) {
      }
      answer.append(buffer.data(), client.read_some(asio::buffer(buffer), error));
    } while (!error);
  };
  connection->Start();
  run();
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      boost::system::error_code error;
      piece.remove_prefix(client.write_some(asio::buffer(piece.data(), piece.size()), error));
      run();
      if (error && error != asio::error::would_block) piece = {};  // the server has closed
    }
  }
  if (late) connection->CheckTime(HttpConnection::Clock::now() + std::chrono::hours(1));
  run();
  boost::system::error_code ignored;
  client.shutdown(asio::socket_base::shutdown_send, ignored);
  run();
  client.close(ignored);
  io.restart();
  while (io.poll() > 0) {
  }
  OUTRIDER_CHECK(closed, "the client left, and the connection did not");
  state.wake_list->Close();
  return answer;
}

/// Cuts the next line off.
std::string_view Line(std::string_view* text) {
  const size_t end = text->find("\r\n");
  OUTRIDER_CHECK(end != std::string_view::npos, "no end of a line: {}", *text);
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end + 2);
  OUTRIDER_CHECK(line.find_first_of("\r\n") == std::string_view::npos, "{}", line);
  return line;
}

std::string_view Bytes(std::string_view* text, size_t size) {
  OUTRIDER_CHECK(size <= text->size(), "{} bytes of {}", text->size(), size);
  const std::string_view bytes = text->substr(0, size);
  text->remove_prefix(size);
  return bytes;
}

/// Takes responses apart. What is left has no times in it, and not what depends on how much has
/// come: "100 Continue" before a body, and refusals of what is no request, or not a whole one.
std::string Essence(std::string_view answer, bool head_asked) {
  std::string essence;
  while (!answer.empty()) {
    const std::string_view status = Line(&answer);
    OUTRIDER_CHECK(status.starts_with("HTTP/1.1 "), "{}", status);
    const int code = std::stoi(std::string(status.substr(9)));
    OUTRIDER_CHECK((code >= 100 && code < 500) || code == 501, "{}", status);
    bool chunked = false;
    bool known = false;
    size_t length = 0;
    std::string head;
    for (std::string_view line = Line(&answer); !line.empty(); line = Line(&answer)) {
      OUTRIDER_CHECK(line.find(": ") != std::string_view::npos, "{}", line);
      if (line.starts_with("Date: ")) continue;
      if (line.starts_with("Content-Length: ")) {
        known = true;
        length = std::stoul(std::string(line.substr(16)));
      }
      chunked = chunked || line == "Transfer-Encoding: chunked";
      head += std::string(line) + '\n';
    }
    if (code == 100) continue;
    if (code == 400 || code == 408 || code == 413 || code == 431) {
      if (head_asked) return essence;
      OUTRIDER_CHECK(known && length == answer.size(), "refused, and more is said: {}", answer);
      return essence;
    }
    essence += std::string(status) + '\n' + head;
    if (code == 204) {
      OUTRIDER_CHECK(!known && !chunked);
      continue;
    }
    // Only who asked knows that no body follows an answer to HEAD.
    if (head_asked) return essence;
    if (chunked) {
      for (;;) {
        const size_t size = std::stoul(std::string(Line(&answer)), nullptr, 16);
        essence += Bytes(&answer, size);
        OUTRIDER_CHECK(Line(&answer).empty());
        if (size == 0) break;
      }
    } else if (known) {
      essence += Bytes(&answer, length);
    } else {
      essence += Bytes(&answer, answer.size());  // HTTP/1.0: to the end of the connection
    }
  }
  return essence;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t step = data[0] % 64 + 1;
  const bool late = (data[0] & 0x80) != 0;
  std::vector<std::string_view> pieces;
  for (size_t i = 0; i < text.size(); i += step) pieces.push_back(text.substr(i, step));
  const bool head_asked = text.find("HEAD") != std::string_view::npos;
  const std::string whole = Essence(Talk({text}, late), head_asked);
  const std::string cut = Essence(Talk(pieces, late), head_asked);
  OUTRIDER_CHECK(cut == whole, "in pieces: {}\nat once: {}", cut, whole);
  return 0;
}
