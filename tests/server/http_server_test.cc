// HTTP itself: methods, routes, limits, keep-alive, bad input, addresses. A case per fault
// makes it long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "outrider/base/error.h"
#include "tests/server/running_server.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using testing::HasSubstr;

// The head of a request, but for what says where its body ends.
const std::string kPost =
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";

TEST(HttpServerTest, AnswersSimpleRoutes) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse health = client.Get("/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "");
  const ClientResponse version = client.Get("/version?verbose=1");
  EXPECT_EQ(version.status, 200);
  EXPECT_EQ(version.headers.at("content-type"), "application/json");
  EXPECT_THAT(version.body, HasSubstr("\"version\":\"0."));
  EXPECT_EQ(client.Get("http://some.host/health").status, 200);
  EXPECT_EQ(client.Get("http://some.host/health?x").status, 200);
}

TEST(HttpServerTest, RefusesUnknownRoutesAndMethods) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse missing = client.Get("/v2/completions");
  EXPECT_EQ(missing.status, 404);
  EXPECT_THAT(missing.body, HasSubstr("no such route: GET /v2/completions"));
  const ClientResponse wrong = client.Get("/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  // The three above and this one came over one connection.
  client.SendRequest("DELETE", "/health");
  EXPECT_EQ(client.Receive().status, 405);
}

TEST(HttpServerTest, AnswersHeadAndOptions) {
  RunningServer running;
  HttpClient client(running.port());
  const ClientResponse full = client.Get("/version");
  client.SendRequest("HEAD", "/version");
  const ClientResponse head = client.Receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), full.headers.at("content-length"));
  client.SendRequest("OPTIONS", "/v1/chat/completions");
  const ClientResponse options = client.Receive();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_FALSE(options.headers.contains("content-length"));
  EXPECT_EQ(client.Get("/health").status, 200);
}

TEST(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  RunningServer running({.step_time = std::chrono::milliseconds(2)});
  HttpClient client(running.port());
  const std::string body = R"({"prompt":"ab","max_tokens":3})";
  client.Send("GET /version HTTP/1.1\r\nHost: a\r\n\r\n" + kPost +
              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body +
              "\r\n"  // an extra line end between requests is allowed
              "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.Receive().body, HasSubstr("version"));
  EXPECT_THAT(client.Receive().body, HasSubstr("text_completion"));
  EXPECT_EQ(client.Receive().status, 200);
}

TEST(HttpServerTest, AcceptsPipelinesLargerThanItsBuffer) {
  RunningServer running;
  HttpClient client(running.port());
  const std::string one =
      "GET /health HTTP/1.1\r\nHost: a\r\nX-Filler: " + std::string(1000, 'x') + "\r\n\r\n";
  constexpr int kCount = 500;
  std::thread sender([&] {
    for (int i = 0; i < kCount; ++i) client.Send(one);
  });
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(client.Receive().status, 200) << i;
  sender.join();
}

TEST(HttpServerTest, AcceptsChunkedBodies) {
  RunningServer running;
  HttpClient client(running.port());
  client.Send(kPost +
              "Transfer-Encoding: chunked\r\n\r\n"
              "9\r\n{\"prompt\"\r\n");
  client.Send("1");
  client.Send("5\r\n:\"ab\",\"max_tokens\":4}\r\n0\r\n\r\n");
  const ClientResponse response = client.Receive();
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(client.Get("/health").status, 200);
}

TEST(HttpServerTest, AcceptsABodyByteByByte) {
  RunningServer running;
  HttpClient client(running.port());
  const std::string request = kPost + "Content-Length: 15\r\n\r\n{\"prompt\":\"ab\"}";
  for (const char c : request) client.Send(std::string_view(&c, 1));
  EXPECT_EQ(client.Receive().status, 200);
}

TEST(HttpServerTest, SaysContinueBeforeALongBody) {
  RunningServer running;
  HttpClient client(running.port());
  client.Send(kPost +
              "Content-Length: 15\r\nExpect: "
              "100-continue\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 100);
  client.Send("{\"prompt\":\"ab\"}");
  EXPECT_EQ(client.Receive().status, 200);
}

// Each with the status that HTTP has for it, and the connection ends: where the body would end is
// not known.
TEST(HttpServerTest, RefusesHeadsThatHttpForbidsOrThatAskForMore) {
  RunningServer running;
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"GET /health HTTP/1.1\r\n", 400, "one Host field"},
      {"GET /health HTTP/1.1\r\nHost: a\r\nhost: b\r\n", 400, "one Host field"},
      {kPost + "Content-Encoding: gzip\r\n", 415, "identity"},
      {kPost + "Transfer-Encoding: gzip, chunked\r\n", 501, "chunked only"},
      {kPost + "Transfer-Encoding: gzip\r\n", 501, "chunked only"},
      {"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400, "HTTP/1.0"},
      {kPost + "Content-Length: 2\r\nExpect: 200-ok\r\n", 417, "100-continue"},
  };
  for (const auto& [head, status, reason] : cases) {
    HttpClient client(running.port());
    client.Send(head + "\r\n");
    const ClientResponse response = client.Receive();
    EXPECT_EQ(response.status, status) << head;
    EXPECT_THAT(response.body, HasSubstr(reason));
    if (status == 415) {
      EXPECT_EQ(response.headers.at("accept-encoding"), "identity");
    }
    EXPECT_TRUE(client.AtEnd()) << head;
  }
  HttpClient plain(running.port());
  plain.Send(kPost +
             "Content-Encoding: identity\r\n"
             "Transfer-Encoding: Chunked\r\n\r\nf\r\n{\"prompt\":\"ab\"}\r\n0\r\n\r\n");
  EXPECT_EQ(plain.Receive().status, 200);
}

TEST(HttpServerTest, RefusesLargeBodiesBeforeTheyArrive) {
  ServerOptions options = TestServerOptions();
  options.http.limits.max_body_bytes = 1000;
  RunningServer running({}, options);
  HttpClient announced(running.port());
  announced.Send(kPost + "Content-Length: 1001\r\n\r\n");
  const ClientResponse response = announced.Receive();
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(response.body, HasSubstr("larger than 1000 bytes"));
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_TRUE(announced.AtEnd());

  HttpClient chunked(running.port());
  chunked.Send(kPost + "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunked.Send("200\r\n" + std::string(512, ' ') + "\r\n");
  EXPECT_EQ(chunked.Receive().status, 413);

  HttpClient exact(running.port());
  std::string body = R"({"prompt":"ab"})";
  body.resize(1000, ' ');
  EXPECT_EQ(exact.Post("/v1/completions", body).status, 200);
}

// The client sends on while it is refused, and must still be able to read why.
TEST(HttpServerTest, ARefusalReachesAClientThatIsStillSending) {
  RunningServer running;
  HttpClient client(running.port());
  client.Send(kPost + "Content-Length: 90000000\r\n\r\n");
  for (int i = 0; i < 100; ++i) client.Send(std::string(50000, 'x'));
  EXPECT_EQ(client.Receive().status, 413);
}

TEST(HttpServerTest, RefusesLargeHeads) {
  RunningServer running;
  HttpClient client(running.port());
  client.SendRequest("GET", "/health", "", "X-Large: " + std::string(20000, 'x') + "\r\n");
  const ClientResponse response = client.Receive();
  EXPECT_EQ(response.status, 431);
  EXPECT_THAT(response.body, HasSubstr("larger than 16384 bytes"));
}

TEST(HttpServerTest, RefusesLargeHeadsThatComeInPieces) {
  RunningServer running;
  HttpClient client(running.port());
  client.Send("GET /health HTTP/1.1\r\nHost: a\r\nX-One: " + std::string(3000, 'x') + "\r\nX-T");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the server takes the first field
  client.Send("wo: " + std::string(14000, 'x') + "\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 431);
}

TEST(HttpServerTest, AnEmptyLineBeforeARequestMayComeInPieces) {
  RunningServer running;
  HttpClient client(running.port());
  client.Send("\r");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  client.Send("\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 200);
}

TEST(HttpServerTest, RefusesWhatIsNotHttp) {
  RunningServer running;
  const std::vector<std::string> requests = {
      "hello\r\n\r\n",
      "GET /health HTTP/2.0\r\n\r\n",
      "GET /health\r\n\r\n",
      "GET /health HTTP/1.1\r\nno colon\r\n\r\n",
      kPost + "Content-Length: -1\r\n\r\n",
      kPost +
          "Content-Length: 3\r\nContent-Length: "
          "4\r\n\r\nabcd",
      kPost +
          "Content-Length: 3\r\nTransfer-Encoding: "
          "chunked\r\n\r\nabc",
      kPost + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15),
  };
  for (const std::string& request : requests) {
    HttpClient client(running.port());
    client.Send(request);
    const ClientResponse response = client.Receive();
    EXPECT_EQ(response.status, 400) << request;
    EXPECT_THAT(response.body, HasSubstr("{\"error\":{\"message\":\"not a valid HTTP request"));
    EXPECT_TRUE(client.AtEnd()) << request;
  }
}

TEST(HttpServerTest, ClosesWhenAsked) {
  RunningServer running;
  HttpClient close(running.port());
  EXPECT_EQ(close.Get("/health", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_TRUE(close.AtEnd());
  HttpClient old(running.port());
  old.Send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Receive().status, 200);
  EXPECT_TRUE(old.AtEnd());
}

// Without chunks the end of a stream is the end of the connection.
TEST(HttpServerTest, StreamsToHttp10Clients) {
  RunningServer running;
  HttpClient old(running.port());
  old.Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: "
      "45\r\n\r\n"
      R"({"prompt":"abc","max_tokens":3,"stream":true})");
  const ClientResponse response = old.Receive();
  EXPECT_FALSE(response.chunked);
  EXPECT_EQ(EventsOf(response.body).back(), "[DONE]");
}

TEST(HttpServerTest, AnswersAClientThatOnlyClosedItsSide) {
  RunningServer running;
  HttpClient client(running.port());
  // The end of what it sends is read while the first of these is answered.
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /version HTTP/1.1\r\nHost: a\r\n\r\n";
  client.Send(requests);
  client.ShutdownSend();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(client.Receive().status, 200) << i;
}

TEST(HttpServerTest, EndsSlowHeadsAndBodies) {
  ServerOptions options = TestServerOptions();
  options.http.limits.header_seconds = 0.2;
  options.http.limits.body_seconds = 0.2;
  RunningServer running({}, options);
  HttpClient head(running.port());
  head.Send("GET /health HT");
  const ClientResponse slow_head = head.Receive();
  EXPECT_EQ(slow_head.status, 408);
  EXPECT_THAT(slow_head.body, HasSubstr("head did not arrive in time"));
  HttpClient body(running.port());
  body.Send(kPost + "Content-Length: 15\r\n\r\n{");
  const ClientResponse slow_body = body.Receive();
  EXPECT_EQ(slow_body.status, 408);
  EXPECT_THAT(slow_body.body, HasSubstr("body did not arrive in time"));
}

TEST(HttpServerTest, ClosesIdleConnections) {
  ServerOptions options = TestServerOptions();
  options.http.limits.idle_seconds = 0.2;
  RunningServer running({}, options);
  HttpClient client(running.port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpServerTest, SaysThatAPortIsInUse) {
  RunningServer running;
  ServerOptions options = TestServerOptions();
  options.http.port = running.port();
  BytePromptEncoder encoder;
  try {
    Server second(options, running.engine, encoder);
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()),
              "port " + std::to_string(running.port()) +
                  " on 127.0.0.1 is in use; stop what listens there or choose another --port");
  }
}

TEST(HttpServerTest, SaysThatAnAddressCannotBeHad) {
  RunningServer running;
  BytePromptEncoder encoder;
  ServerOptions options = TestServerOptions();
  options.http.host = "192.0.2.1";  // reserved for documentation
  EXPECT_THROW(Server(options, running.engine, encoder), Error);
  options.http.host = "not a host";
  EXPECT_THROW(Server(options, running.engine, encoder), Error);
}

// A path for a unix socket, free at the beginning of a test.
class UnixSocketTest : public ::testing::Test {
 protected:
  UnixSocketTest() { options_.http.uds = path_; }

  void WriteFile() const { std::ofstream(path_) << "precious"; }
  std::string ReadFile() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // What a server on the path says that cannot be.
  std::string Failure() {
    try {
      const Server server(options_, engine_, encoder_);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.path() / "outrider.sock";
  ServerOptions options_ = TestServerOptions();
  BytePromptEncoder encoder_;
  StubGenerationService engine_{StubOptions{}};
};

TEST_F(UnixSocketTest, IsServedAndRemoved) {
  {
    RunningServer running({}, options_);
    HttpClient client(path_);
    EXPECT_EQ(client.Get("/health").status, 200);
    EXPECT_EQ(running.port(), 0);
    EXPECT_THAT(Failure(), HasSubstr("is in use"));
    EXPECT_EQ(client.Get("/health").status, 200) << "the other one took nothing away";
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixSocketTest, AFileThatIsNoSocketIsLeftAlone) {
  WriteFile();
  EXPECT_THAT(Failure(), HasSubstr("exists and is no socket"));
  EXPECT_EQ(ReadFile(), "precious");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/dev/null", path_);
  EXPECT_THAT(Failure(), HasSubstr("exists and is no socket"));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

TEST_F(UnixSocketTest, WhatTookTheSocketsPlaceIsLeftAlone) {
  {
    RunningServer running({}, options_);
    std::filesystem::remove(path_);
    WriteFile();
  }
  EXPECT_EQ(ReadFile(), "precious");
}

TEST_F(UnixSocketTest, ASocketOfADeadServerIsReplaced) {
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(dead);
  ASSERT_TRUE(std::filesystem::is_socket(path_));
  RunningServer running({}, options_);
  EXPECT_EQ(HttpClient(path_).Get("/health").status, 200);
}

TEST(HttpServerTest, AnAddressCanBeCheckedBeforeAServerIsMade) {
  RunningServer running;
  ServerOptions options = TestServerOptions();
  HttpServer::CheckAddress(options.http);
  options.http.port = running.port();
  try {
    HttpServer::CheckAddress(options.http);
    ADD_FAILURE() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is in use"));
  }
  EXPECT_EQ(HttpClient(running.port()).Get("/health").status, 200);
}

TEST(HttpServerTest, RaisesTheLimitOfOpenFiles) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = 64, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RunningServer running;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

// Sends the head and all but the last byte of a body.
void SendUnfinished(HttpClient& client, size_t bytes) {
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/json\r\nContent-Length: " +
      std::to_string(bytes + 1) + "\r\n\r\n" + std::string(bytes, ' '));
}

TEST(HttpServerTest, BodiesShareABudget) {
  ServerOptions options = TestServerOptions();
  options.http.limits.max_bodies_bytes = 1'000'000;
  options.http.limits.free_body_bytes = 10'000;
  RunningServer running({}, options);
  const std::string large = R"({"prompt":"a","max_tokens":1})" + std::string(600'000, ' ');
  HttpClient refused(running.port());
  {
    HttpClient first(running.port());
    SendUnfinished(first, 600'000);
    ASSERT_TRUE(Eventually([&] { return running.server->body_bytes() == 600'000; }, 60));
    const ClientResponse response = refused.Post("/v1/completions", large);
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_THAT(response.body, HasSubstr("too little memory"));
    HttpClient small(running.port());
    EXPECT_EQ(small.Post("/v1/completions", R"({"prompt":"a","max_tokens":1})").status, 200);
    first.Send("x");
    EXPECT_EQ(first.Receive().status, 400);
  }
  const auto is_taken = [&] {
    return HttpClient(running.port()).Post("/v1/completions", large).status == 200;
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Eventually(is_taken));
  {
    HttpClient gone(running.port());
    SendUnfinished(gone, 900'000);
  }
  EXPECT_TRUE(Eventually(is_taken));
}

TEST(HttpServerTest, ConnectionsHaveALimit) {
  ServerOptions options = TestServerOptions();
  options.http.limits.max_connections = 2;
  RunningServer running({}, options);
  HttpClient first(running.port());
  {
    HttpClient second(running.port());
    EXPECT_EQ(first.Get("/health").status, 200);
    EXPECT_EQ(second.Get("/health").status, 200);
    HttpClient third(running.port());
    EXPECT_EQ(third.Receive().status, 503);
    EXPECT_TRUE(third.AtEnd());
    EXPECT_EQ(first.Get("/health").status, 200);
  }
  EXPECT_TRUE(Eventually([&] { return HttpClient(running.port()).Get("/health").status == 200; }));
}

}  // namespace
}  // namespace outrider
