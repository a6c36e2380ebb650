#include "outrider/measure/serve_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string CompletionBody(const GenerationRequest& request, const std::string& model) {
  json body = {{"model", model},
               {"prompt", request.prompt_token_ids},
               {"max_tokens", request.sampling.max_tokens},
               {"temperature", request.sampling.temperature},
               {"ignore_eos", request.sampling.ignore_eos},
               {"stream", true},
               {"return_token_ids", true}};
  if (request.sampling.seed) body["seed"] = *request.sampling.seed;
  return body.dump();
}

/// One load: what its connections share. All run on one thread.
class ServeLoad {
 public:
  ServeLoad(uint16_t port, const std::string& model, std::span<const GenerationRequest> requests)
      : port_(port), model_(model), requests_(requests) {
    row_.requests.resize(requests.size());
    row_.token_ids.resize(requests.size());
  }

  /// Sends one request after the other until none is left.
  asio::awaitable<void> Connection() {
    boost::beast::tcp_stream stream(co_await asio::this_coro::executor);
    stream.expires_never();
    co_await stream.async_connect({asio::ip::address_v4::loopback(), port_}, asio::use_awaitable);
    boost::beast::flat_buffer buffer;
    while (next_ < requests_.size()) co_await Ask(next_++, stream, buffer);
  }

  BenchRow& row() { return row_; }

 private:
  asio::awaitable<void> Ask(size_t index, boost::beast::tcp_stream& stream,
                            boost::beast::flat_buffer& buffer) {
    http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
    request.set(http::field::host, "127.0.0.1");
    request.set(http::field::content_type, "application/json");
    request.body() = CompletionBody(requests_[index], model_);
    request.prepare_payload();
    const Clock::time_point start = Clock::now();
    co_await http::async_write(stream, request, asio::use_awaitable);
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
    size_t taken = 0;  // bytes of the body
    while (!parser.is_done()) {
      co_await http::async_read_some(stream, buffer, parser, asio::use_awaitable);
      if (parser.get().result() == http::status::ok) {
        taken += TakeEvents(index, std::string_view(parser.get().body()).substr(taken), start);
      }
    }
    if (parser.get().result() != http::status::ok) {
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("the server answered {}: {}", parser.get().result_int(),
                              parser.get().body()));
    }
    RequestStats& stats = row_.requests[index];
    stats.total_seconds = SecondsSince(start);
    stats.prompt_tokens = std::ssize(requests_[index].prompt_token_ids);
    stats.completion_tokens = std::ssize(row_.token_ids[index]);
    if (stats.completion_tokens == 0) {
      throw Error(ErrorCode::kUnavailable,
                  "the server ended an answer without a token: " + parser.get().body());
    }
  }

  /// Takes whole server-sent events from the front of `text`; returns how many bytes they are.
  size_t TakeEvents(size_t index, std::string_view text, Clock::time_point start) {
    constexpr std::string_view kData = "data: ";
    constexpr std::string_view kEnd = "\n\n";
    size_t taken = 0;
    for (size_t end; (end = text.find(kEnd, taken)) != std::string_view::npos;
         taken = end + kEnd.size()) {
      const std::string_view event = text.substr(taken, end - taken);
      if (!event.starts_with(kData) || event == "data: [DONE]") continue;
      const json chunk = json::parse(event.substr(kData.size()));
      if (chunk.contains("error")) {
        throw Error(ErrorCode::kUnavailable, "the server ended an answer: " + chunk.dump());
      }
      for (const json& choice : chunk.at("choices")) TakeTokens(index, choice, start);
    }
    return taken;
  }

  void TakeTokens(size_t index, const json& choice, Clock::time_point start) {
    std::vector<int32_t>& ids = row_.token_ids[index];
    const auto delta = choice.at("token_ids").get<std::vector<int32_t>>();
    if (ids.empty() && !delta.empty()) {
      row_.requests[index].first_token_seconds = SecondsSince(start);
    }
    ids.insert(ids.end(), delta.begin(), delta.end());
  }

  uint16_t port_;
  const std::string& model_;
  std::span<const GenerationRequest> requests_;
  size_t next_ = 0;
  BenchRow row_;
};

int64_t NumFinished(const EngineCounters& counters) {
  return counters.finished_stop + counters.finished_length + counters.finished_abort +
         counters.finished_error;
}

/// The counters with all `count` requests in them: a step's answers go out before it is counted.
EngineCounters CountersAfter(const GenerationService& service, const EngineCounters& before,
                             size_t count) {
  constexpr std::chrono::seconds kLongestStep{10};
  const Clock::time_point end = Clock::now() + kLongestStep;
  for (;;) {
    EngineCounters counters = service.Counters();
    const auto finished = static_cast<size_t>(NumFinished(counters) - NumFinished(before));
    if (finished >= count || Clock::now() > end) return counters;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

BenchRow RunServeLoad(uint16_t port, const std::string& model, const GenerationService& service,
                      std::span<const GenerationRequest> requests, int32_t batch_size,
                      const std::atomic<bool>& interrupted) {
  constexpr std::chrono::milliseconds kLookForInterrupts{50};
  ServeLoad load(port, model, requests);
  const EngineCounters before = service.Counters();
  std::exception_ptr failure;
  asio::io_context io(1);
  const Clock::time_point start = Clock::now();
  const auto connections = std::min(static_cast<size_t>(batch_size), requests.size());
  for (size_t i = 0; i < connections; ++i) {
    asio::co_spawn(io, load.Connection(), [&](const std::exception_ptr& error) {
      if (error && !failure) failure = error;
    });
  }
  while (!io.stopped() && !failure) {
    io.run_for(kLookForInterrupts);
    if (interrupted.load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::kUnavailable, "interrupted");
    }
  }
  if (failure) std::rethrow_exception(failure);
  BenchRow row = std::move(load.row());
  row.seconds = SecondsSince(start);
  row.counters = Growth(before, CountersAfter(service, before, requests.size()));
  row.resident_bytes = ResidentBytes();
  return row;
}

}  // namespace outrider
