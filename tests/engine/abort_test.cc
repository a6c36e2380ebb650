// A request that nobody waits for any more: gone, with its blocks, before the next step runs.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

GenerationRequest LongRequest(uint64_t seed) {
  GenerationRequest request;
  request.prompt_token_ids = std::vector<int32_t>(40, 7);
  request.sampling.seed = seed;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 400;
  return request;
}

TEST(AbortTest, FreesARequestBeforeTheNextStep) {
  const auto engine = MakeTestEngine({.max_num_batched_tokens = 64});
  Generated running;
  Generated half_read;
  Generated unread;
  const std::vector<RequestId> ids = {Submit(*engine, LongRequest(1), &running),
                                      Submit(*engine, LongRequest(2), &half_read),
                                      Submit(*engine, LongRequest(3), &unread)};
  ASSERT_TRUE(engine->Step());  // reads the first prompt and the beginning of the second
  ASSERT_FALSE(running.tokens.empty());
  EXPECT_GT(engine->Counters().kv_cache_usage, 0);
  const size_t made = running.tokens.size();
  for (const RequestId id : ids) engine->Abort(id);
  engine->Step();
  for (const Generated* request : {&running, &half_read, &unread}) {
    EXPECT_EQ(request->finish_reason, FinishReason::kAbort);
  }
  EXPECT_EQ(running.tokens.size(), made);
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.num_requests_running + counters.num_requests_waiting, 0);
  EXPECT_EQ(counters.kv_cache_usage, 0);
  EXPECT_EQ(counters.finished_abort, 3);
  engine->Abort(ids[0]);  // again: nothing happens
  RunUntilIdle(*engine);
  EXPECT_EQ(engine->Counters().finished_abort, 3);
}

}  // namespace
}  // namespace outrider
