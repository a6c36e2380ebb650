// Traces: a span for each request reaches a collector; an absent or slow one holds up nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/telemetry/trace_exporter.h"
#include "tests/server/running_server.h"
#include "tests/server/test_identities.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using nlohmann::json;
using testing::HasSubstr;

// An OpenTelemetry collector: takes requests one after the other until it is destroyed. With an
// identity it speaks TLS.
class Collector {
 public:
  explicit Collector(unsigned status = 200, const TestIdentity* identity = nullptr)
      : status_(status), acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}) {
    if (identity != nullptr) {
      tls_.emplace(asio::ssl::context::tls_server);
      tls_->use_certificate_chain_file(identity->cert);
      tls_->use_private_key_file(identity->key, asio::ssl::context::pem);
    }
    thread_ = std::thread([this] { Run(); });
  }

  ~Collector() {
    stopping_ = true;
    boost::system::error_code ignored;
    tcp::socket wake(io_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  std::string address() const {
    return (tls_ ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port());
  }

  std::vector<json> Spans() {
    const std::lock_guard lock(mutex_);
    return spans_;
  }
  std::string target() {
    const std::lock_guard lock(mutex_);
    return target_;
  }

 private:
  void Run() {
    while (!stopping_) {
      boost::system::error_code error;
      tcp::socket socket(io_);
      acceptor_.accept(socket, error);
      if (error || stopping_) return;
      if (!tls_) {
        Take(socket);
        continue;
      }
      asio::ssl::stream<tcp::socket&> stream(socket, *tls_);
      stream.handshake(asio::ssl::stream_base::server, error);
      if (!error) Take(stream);
    }
  }

  template <typename Stream>
  void Take(Stream& stream) {
    boost::system::error_code error;
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    http::read(stream, buffer, request, error);
    if (error) return;
    {
      const std::lock_guard lock(mutex_);
      target_ = std::string(request.target());
      EXPECT_EQ(request.method(), http::verb::post);
      EXPECT_EQ(request[http::field::content_type], "application/json");
      const json body = json::parse(request.body());
      EXPECT_EQ(body["resourceSpans"][0]["resource"]["attributes"][0]["key"], "service.name");
      for (const json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        spans_.push_back(span);
      }
    }
    http::response<http::string_body> response(http::status(status_), 11);
    response.body() = "{}";
    response.prepare_payload();
    http::write(stream, response, error);
  }

  const unsigned status_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::optional<asio::ssl::context> tls_;
  std::mutex mutex_;
  std::vector<json> spans_;
  std::string target_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

ServerOptions Tracing(const std::string& endpoint) {
  ServerOptions options = TestServerOptions();
  options.otlp_traces_endpoint = endpoint;
  return options;
}

int AskTraced(const RunningServer& running, const std::string& headers, const std::string& body) {
  return HttpClient(running.port()).Post("/v1/completions", body, headers).status;
}

// A span's attributes by name; numbers as OTLP writes them.
std::map<std::string, json> AttributesOf(const json& span) {
  std::map<std::string, json> attributes;
  for (const json& attribute : span["attributes"]) {
    attributes[attribute["key"]] = attribute["value"].begin().value();
  }
  return attributes;
}

TEST(TraceTest, ARequestIsASpan) {
  Collector collector;
  {
    RunningServer running({.tokens_per_step = 2}, Tracing(collector.address()));
    EXPECT_EQ(AskTraced(running,
                        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
                        "tracestate: vendor=\"1\"\r\n",
                        R"({"prompt":"abcd","max_tokens":5,"n":2,"temperature":0.7,"top_p":0.25,)"
                        R"("request_id":"mine","stream":true})"),
              200);
  }
  const std::vector<json> spans = collector.Spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(collector.target(), "/v1/traces");
  const json& span = spans[0];
  EXPECT_EQ(span["name"], "llm_request");
  EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["traceState"], "vendor=\"1\"");
  EXPECT_EQ(span["spanId"].get<std::string>().size(), 16U);
  EXPECT_FALSE(span.contains("status"));
  const auto time = [&](const char* name) { return std::stoll(span[name].get<std::string>()); };
  EXPECT_GT(time("startTimeUnixNano"), 1'500'000'000'000'000'000);
  EXPECT_GE(time("endTimeUnixNano"), time("startTimeUnixNano"));
  std::map<std::string, json> attributes = AttributesOf(span);
  EXPECT_EQ(attributes["gen_ai.request.id"], "cmpl-mine");
  EXPECT_EQ(attributes["gen_ai.request.max_tokens"], "5");
  EXPECT_EQ(attributes["gen_ai.request.temperature"], 0.7);
  EXPECT_EQ(attributes["gen_ai.request.top_p"], 0.25);
  EXPECT_EQ(attributes["gen_ai.request.n"], "2");
  EXPECT_EQ(attributes["gen_ai.response.model"], "stub");
  EXPECT_EQ(attributes["gen_ai.usage.prompt_tokens"], "5");
  EXPECT_EQ(attributes["gen_ai.usage.completion_tokens"], "10");
  EXPECT_TRUE(attributes["gen_ai.latency.time_in_queue"].is_number());
  EXPECT_GT(attributes["gen_ai.latency.time_to_first_token"], 0.0);
  EXPECT_GE(attributes["gen_ai.latency.e2e"], attributes["gen_ai.latency.time_to_first_token"]);
}

TEST(TraceTest, TracesAreBegunGoneOnWithOrLeftAlone) {
  Collector collector;
  {
    RunningServer running({}, Tracing(collector.address() + "/otlp"));
    EXPECT_EQ(
        AskTraced(running, "traceparent: 00-nonsense\r\n", R"({"prompt":"a","max_tokens":1})"),
        200);
    // Not sampled: not recorded.
    EXPECT_EQ(AskTraced(running,
                        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n",
                        R"({"prompt":"a","max_tokens":1})"),
              200);
    EXPECT_EQ(AskTraced(running, "", R"({"prompt":3})"), 400);
  }
  const std::vector<json> spans = collector.Spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(collector.target(), "/otlp");
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_EQ(spans[0]["traceId"].get<std::string>().size(), 32U);
  EXPECT_NE(spans[0]["traceId"], spans[1]["traceId"]);
  EXPECT_EQ(spans[1]["status"], (json{{"code", 2}, {"message", "status 400"}}));
}

TEST(TraceTest, NobodyWaitsForACollectorThatIsAbsentOrSlow) {
  asio::io_context io;
  // Listens and never answers.
  tcp::acceptor silent(io, {asio::ip::make_address("127.0.0.1"), 0});
  const std::string port = std::to_string(silent.local_endpoint().port());
  for (const std::string& where : {port, std::string("1")}) {
    TraceExporter exporter(
        {"127.0.0.1", where, "/v1/traces"},
        {.max_waiting = 10, .max_batch = 4, .batch_seconds = 0.01, .send_seconds = 3});
    for (int i = 0; i < 1000; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      exporter.Add("{}");
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
      // The second comes while the first is on its way to a collector that is slow.
      if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_GE(exporter.num_dropped(), 1000 - 10 - 8);
  }
}

TEST(TraceTest, ARefusalIsNoDelivery) {
  Collector collector(503);
  TraceExporter exporter({"127.0.0.1", std::to_string(collector.port()), "/v1/traces"},
                         {.batch_seconds = 0});
  exporter.Add("{}");
  EXPECT_TRUE(Eventually([&] { return exporter.num_dropped() == 1; }));
}

TEST(TraceTest, WhatWaitsIsSentBeforeTheEnd) {
  Collector collector;
  {
    TraceExporter exporter({"127.0.0.1", std::to_string(collector.port()), "/v1/traces"},
                           {.max_batch = 2, .batch_seconds = 60});
    for (int i = 0; i < 5; ++i) exporter.Add("{}");
  }
  EXPECT_EQ(collector.Spans().size(), 5U);
}

// What OpenSSL trusts, while this lives.
class Trusting {
 public:
  explicit Trusting(const std::string& file) { setenv("SSL_CERT_FILE", file.c_str(), 1); }
  ~Trusting() { unsetenv("SSL_CERT_FILE"); }
  Trusting(const Trusting&) = delete;
  Trusting& operator=(const Trusting&) = delete;
};

TEST(TraceTest, OverTlsToACollectorThatIsTrusted) {
  const TestIdentities identities;
  const TestIdentity own = identities.Make("collector");
  Collector collector(200, &own);
  const Trusting trusting(own.cert);
  {
    RunningServer running({}, Tracing(collector.address()));
    EXPECT_EQ(AskTraced(running, "", R"({"prompt":"a","max_tokens":1})"), 200);
  }
  ASSERT_EQ(collector.Spans().size(), 1U);
  EXPECT_EQ(collector.Spans()[0]["name"], "llm_request");
}

TEST(TraceTest, NothingGoesToACollectorThatIsNotTrusted) {
  const TestIdentities identities;
  const TestIdentity stranger = identities.Make("stranger");
  const TestIdentity friendly = identities.Make("friend");
  const TestIdentity of_another_host = identities.Make("other", "IP:127.0.0.2,DNS:localhost");
  const auto expect_dropped = [](const TestIdentity& identity, const std::string& trusted) {
    Collector collector(200, &identity);
    const Trusting trusting(trusted);
    TraceExporter exporter(ParseTracesEndpoint("--x", collector.address()), {.batch_seconds = 0});
    exporter.Add("{}");
    EXPECT_TRUE(Eventually([&] { return exporter.num_dropped() == 1; }));
    EXPECT_TRUE(collector.Spans().empty());
  };
  expect_dropped(stranger, friendly.cert);
  expect_dropped(of_another_host, of_another_host.cert);
}

TEST(TraceTest, Addresses) {
  const auto parse = [](const std::string& url) { return ParseTracesEndpoint("--x", url); };
  EXPECT_EQ(parse("http://h").port, "4318");
  EXPECT_EQ(parse("http://h:5/").path, "/v1/traces");
  EXPECT_EQ(parse("http://[::1]:5/a/b").host, "::1");
  EXPECT_EQ(parse("http://[::1]:5/a/b").path, "/a/b");
  EXPECT_EQ(parse("http://[::1]").port, "4318");
  EXPECT_FALSE(parse("http://h").tls);
  EXPECT_TRUE(parse("https://h").tls);
  EXPECT_EQ(parse("https://h").port, "443");
  EXPECT_EQ(parse("https://h:4318/a").port, "4318");
  EXPECT_EQ(parse("https://h:4318/a").path, "/a");
  for (const char* bad : {"h:4318", "https://", "grpc://h", "http://", "http://:5", "http://h:x",
                          "http://h:", "http://h /a"}) {
    try {
      parse(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--x: '" + std::string(bad) + "' is no address"));
    }
  }
}

}  // namespace
}  // namespace outrider
