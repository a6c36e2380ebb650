// Clients that go away or do not read: the engine must not run for them, nor anyone wait for them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr const char* kLong = R"({"prompt":"abcdefgh","max_tokens":4000,"stream":)";
// A disconnect frees a request within this; a step of the stub takes a few milliseconds.
constexpr double kSoon = 2;

TEST(SlowClientTest, DisconnectAbortsAStream) {
  RunningServer running({.step_time = milliseconds(2)});
  HttpClient client(running.port());
  client.SendRequest("POST", "/v1/completions", std::string(kLong) + "true}");
  ASSERT_TRUE(client.ReceiveUntil("data: "));
  EXPECT_EQ(running.engine.num_running(), 1);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }, kSoon));
  EXPECT_EQ(running.engine.num_aborted(), 1);
}

TEST(SlowClientTest, DisconnectAbortsBeforeTheFirstByte) {
  RunningServer running({.step_time = milliseconds(100)});
  for (const char* stream : {"true}", "false}"}) {
    HttpClient client(running.port());
    client.SendRequest("POST", "/v1/completions", std::string(kLong) + stream);
    ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
    client.Close();
    EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }, kSoon));
  }
  EXPECT_EQ(running.engine.num_aborted(), 2);
}

// The step that runs meanwhile ends as it would; the next one is without the request.
TEST(SlowClientTest, DisconnectFreesARequestWithinAStep) {
  RunningServer running({.step_time = milliseconds(300)});
  for (const char* stream : {"true}", "false}"}) {
    HttpClient client(running.port());
    client.SendRequest("POST", "/v1/completions", std::string(kLong) + stream);
    const auto steps = [&] { return running.engine.Counters().num_steps; };
    const int64_t begin = steps();
    ASSERT_TRUE(Eventually([&] { return steps() > begin; }));
    client.Close();
    const int64_t closed = steps();
    EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }, kSoon));
    EXPECT_LE(steps(), closed + 1);
  }
  EXPECT_EQ(running.engine.num_aborted(), 2);
}

TEST(SlowClientTest, DisconnectAbortsEveryPromptOfARequest) {
  RunningServer running({.step_time = milliseconds(5)});
  HttpClient client(running.port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":["a","b","c","d"],"max_tokens":4000})");
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 4; }));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }, kSoon));
  EXPECT_EQ(running.engine.num_aborted(), 4);
}

TEST(SlowClientTest, DisconnectRightAfterSendingLeavesNothingRunning) {
  RunningServer running({.step_time = milliseconds(1)});
  for (int i = 0; i < 50; ++i) {
    HttpClient client(running.port());
    client.SendRequest("POST", "/v1/completions", std::string(kLong) + "true}");
  }
  EXPECT_TRUE(Eventually(
      [&] {
        return running.engine.num_running() == 0 &&
               HttpClient(running.port()).Get("/health").status;
      },
      kSoon));
}

// A reader that takes nothing for a while: others go on, and it gets every byte in the end.
TEST(SlowClientTest, ASlowReaderStallsNobodyAndLosesNothing) {
  ServerOptions options = TestServerOptions();
  options.max_model_len = 1 << 20;
  RunningServer running({.tokens_per_step = 1}, options);
  HttpClient slow(running.port(), 4096);
  slow.SendRequest(
      "POST", "/v1/completions",
      R"({"prompt":[97,98,99],"max_tokens":300000,"stream":true,"return_token_ids":true})");
  ASSERT_TRUE(slow.ReceiveUntil("data: "));
  // The engine finishes the slow client's tokens while that one has read next to nothing.
  EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }, 20));
  const auto start = std::chrono::steady_clock::now();
  HttpClient quick(running.port());
  EXPECT_EQ(quick.Post("/v1/completions", R"({"prompt":"a","max_tokens":100})").status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  // The head has been received: what follows are chunks of events.
  ASSERT_TRUE(slow.ReceiveUntil("data: [DONE]"));
}

TEST(SlowClientTest, AReaderThatNeverReadsIsDisconnected) {
  ServerOptions options = TestServerOptions();
  options.max_model_len = 1 << 30;
  options.http.limits.write_seconds = 0.3;
  RunningServer running({.tokens_per_step = 10000, .step_time = milliseconds(1)}, options);
  HttpClient stuck(running.port(), 4096);
  stuck.SendRequest("POST", "/v1/completions",
                    R"({"prompt":"abc","max_tokens":1000000000,"stream":true})");
  ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
  EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 1; }, 60));
}

TEST(SlowClientTest, ASilentStreamIsKeptOpenByComments) {
  ServerOptions options = TestServerOptions();
  options.http.limits.heartbeat_seconds = 0.1;
  RunningServer running({.held = true}, options);
  HttpClient client(running.port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":4,"stream":true})");
  // One after the other, each a chunk of its own, for as long as the engine says nothing.
  const std::string ping = "8\r\n: ping\n\n\r\n";
  EXPECT_TRUE(client.ReceiveUntil(ping + ping));
  running.engine.Release();
  EXPECT_TRUE(client.ReceiveUntil("[DONE]"));
}

}  // namespace
}  // namespace outrider
