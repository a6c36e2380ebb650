// The clients of `outrider bench serve`, on the stub's server.
#include "outrider/measure/serve_load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

std::vector<GenerationRequest> Requests(int32_t count, int32_t max_tokens) {
  std::vector<GenerationRequest> requests(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests[static_cast<size_t>(i)];
    request.prompt_token_ids = {100 + i, 70};
    request.sampling.max_tokens = max_tokens;
    request.sampling.seed = uint64_t{1} << 63U;
  }
  return requests;
}

TEST(ServeLoadTest, EveryRequestGetsItsTokensAndTimes) {
  StubOptions options;
  options.step_time = std::chrono::microseconds(200);
  RunningServer server(options);
  const std::atomic<bool> never{false};
  const auto requests = Requests(7, 5);
  const BenchRow row = RunServeLoad(server.port(), "stub", server.engine, requests, 3, never);
  ASSERT_EQ(row.token_ids.size(), 7U);
  for (int32_t i = 0; i < 7; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(row.token_ids[at], (std::vector<int32_t>{100 + i, 70, 100 + i, 70, 100 + i}));
    const RequestStats& stats = row.requests[at];
    EXPECT_EQ(stats.prompt_tokens, 2);
    EXPECT_EQ(stats.completion_tokens, 5);
    EXPECT_GT(stats.first_token_seconds, 0);
    EXPECT_GT(stats.total_seconds, stats.first_token_seconds);
    EXPECT_GE(row.seconds, stats.total_seconds);
  }
  EXPECT_EQ(row.counters.generation_tokens, 35);
}

TEST(ServeLoadTest, ARefusedRequestIsAnError) {
  RunningServer server(StubOptions{});
  const std::atomic<bool> never{false};
  try {
    RunServeLoad(server.port(), "another", server.engine, Requests(2, 3), 2, never);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the server answered 404"), std::string::npos)
        << error.what();
  }
}

TEST(ServeLoadTest, AnAnswerThatFailsIsAnError) {
  StubOptions options;
  options.fail_after = 2;
  RunningServer server(options);
  const std::atomic<bool> never{false};
  EXPECT_THROW(RunServeLoad(server.port(), "stub", server.engine, Requests(1, 5), 1, never), Error);
}

TEST(ServeLoadTest, CanBeInterrupted) {
  StubOptions options;
  options.held = true;
  RunningServer server(options);
  const std::atomic<bool> interrupted{true};
  EXPECT_THROW(RunServeLoad(server.port(), "stub", server.engine, Requests(2, 5), 2, interrupted),
               Interrupted);
}

}  // namespace
}  // namespace outrider
