// Stopping: what runs may finish, what is new is refused, what takes too long is cancelled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(ServerStopTest, StopsAtOnceWhenIdle) {
  RunningServer running;
  HttpClient idle(running.port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  const auto start = std::chrono::steady_clock::now();
  running.server->Stop();
  running.Join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_TRUE(idle.AtEnd());
}

TEST(ServerStopTest, LetsRunningRequestsFinishAndRefusesNewOnes) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 60;
  RunningServer running({.step_time = milliseconds(20)}, options);
  HttpClient stream(running.port());
  HttpClient whole(running.port());
  stream.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"ab","max_tokens":200,"stream":true})");
  whole.SendRequest("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":200})");
  ASSERT_TRUE(stream.ReceiveUntil("data: "));
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 2; }));
  running.server->Stop();
  ClientResponse refused;
  ASSERT_TRUE(Eventually([&] {
    refused = HttpClient(running.port()).Get("/health");
    return refused.status == 503;
  }));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(HttpClient(running.port()).Post("/v1/completions", R"({"prompt":"a"})").status, 503);
  EXPECT_TRUE(stream.ReceiveUntil("[DONE]"));
  EXPECT_EQ(whole.Receive().status, 200);
  running.Join();
  EXPECT_EQ(running.engine.num_aborted(), 0);
}

TEST(ServerStopTest, AFailedEngineIsNotWaitedForButItsHealthIsTold) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 600;
  for (const bool signalled : {false, true}) {
    RunningServer running({.step_time = milliseconds(20)}, options);
    HttpClient stream(running.port());
    stream.SendRequest("POST", "/v1/completions",
                       R"({"prompt":"ab","max_tokens":4000,"stream":true})");
    ASSERT_TRUE(stream.ReceiveUntil("data: "));
    HttpClient health(running.port());
    EXPECT_EQ(health.Get("/health").status, 200);
    if (signalled) running.server->Stop();  // and then the engine fails
    running.server->StopAfterFailure();
    ASSERT_TRUE(
        Eventually([&] { return HttpClient(running.port()).Get("/health").status == 503; }));
    running.Join();
    EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 1; }, 60));
  }
}

// Closing a connection that is kept for more could meet a request that is on its way, which then
// got no answer.
TEST(ServerStopTest, RefusesNewRequestsOnKeptConnections) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 60;
  RunningServer running({.step_time = milliseconds(20)}, options);
  HttpClient busy(running.port());
  HttpClient answered(running.port());
  HttpClient idle(running.port());
  HttpClient fresh(running.port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  busy.SendRequest("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":200,"stream":true})");
  answered.SendRequest("POST", "/v1/completions",
                       R"({"prompt":"ab","max_tokens":20,"stream":true})");
  ASSERT_TRUE(busy.ReceiveUntil("data: "));
  ASSERT_TRUE(answered.ReceiveUntil("data: "));  // its head promises to keep the connection
  running.server->Stop();
  ASSERT_TRUE(Eventually([&] { return HttpClient(running.port()).Get("/health").status == 503; }));
  EXPECT_EQ(answered.Receive().status, 200);
  for (HttpClient* client : {&idle, &answered, &fresh}) {
    const ClientResponse refused = client->Post("/v1/completions", R"({"prompt":"a"})");
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.at("connection"), "close");
    EXPECT_TRUE(client->AtEnd());
  }
  EXPECT_TRUE(busy.ReceiveUntil("[DONE]"));
  running.Join();
  EXPECT_EQ(running.engine.num_aborted(), 0);
}

TEST(ServerStopTest, CancelsWhatTakesTooLong) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 0.3;
  RunningServer running({.step_time = milliseconds(20)}, options);
  HttpClient stream(running.port());
  HttpClient whole(running.port());
  stream.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"ab","max_tokens":4000,"stream":true})");
  whole.SendRequest("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":4000})");
  ASSERT_TRUE(stream.ReceiveUntil("data: "));
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 2; }));
  running.server->Stop();
  EXPECT_TRUE(stream.ReceiveUntil(R"(data: {"error":{"message":"the server is shutting down")"));
  const ClientResponse response = whole.Receive();
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("shutting_down"));
  running.Join();
  EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 2; }));
}

// The engine may end requests after their server is gone.
TEST(ServerStopTest, TheEngineMayOutliveTheServer) {
  StubGenerationService engine({.step_time = milliseconds(50)});
  BytePromptEncoder encoder;
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 0;
  auto server = std::make_unique<Server>(options, engine, encoder);
  std::thread thread([&] { server->Run(); });
  HttpClient client(server->port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":4000})");
  ASSERT_TRUE(Eventually([&] { return engine.num_running() == 1; }));
  server->Stop();
  thread.join();
  server.reset();
  EXPECT_TRUE(Eventually([&] { return engine.num_running() == 0; }));
}

}  // namespace
}  // namespace outrider
