// What an engine counts, asked for from another thread.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "outrider/engine/engine_thread.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

TEST(CountersTest, AfterAStepAllThatSinksWereGivenIsCounted) {
  const auto engine = MakeTestEngine({});
  const EngineThread thread(*engine, [](const std::string& reason) { ADD_FAILURE() << reason; });
  for (int64_t round = 1; round <= 5; ++round) {
    GenerationRequest request;
    request.prompt_token_ids = {5, 6, 7, 8};
    request.sampling.max_tokens = 9;
    request.sampling.ignore_eos = true;
    std::promise<void> finished;
    engine->Submit(std::move(request), [&](RequestId, OutputDelta&& delta) {
      if (!delta.finish_reason) return;
      finished.set_value();
      // The step goes on for a while after a client has its answer.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    finished.get_future().wait();
    const EngineCounters counters = engine->CountersAfterStep();
    EXPECT_EQ(counters.generation_tokens, 9 * round);
    EXPECT_EQ(counters.finished_length, round);
    EXPECT_EQ(counters.num_requests_running, 0);
  }
}

}  // namespace
}  // namespace outrider
