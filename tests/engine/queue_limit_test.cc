// --max-num-queued-reqs bounds the requests that wait, not those that free slots are there for.
#include <gtest/gtest.h>

#include <vector>

#include "outrider/base/error.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

GenerationRequest ShortRequest(size_t prompt_tokens) {
  GenerationRequest request;
  request.prompt_token_ids = std::vector<int32_t>(prompt_tokens, 7);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 4;
  return request;
}

// What CheckRoom throws; nothing when there is room.
std::optional<ErrorCode> Refusal(const Engine& engine, int64_t count = 1) {
  try {
    engine.CheckRoom(count);
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

TEST(QueueLimitTest, FreeSlotsAreCounted) {
  const auto engine = MakeTestEngine({.max_num_seqs = 4, .max_num_queued_reqs = 1});
  std::vector<Generated> answers(5);
  for (Generated& answer : answers) Submit(*engine, ShortRequest(8), &answer);  // before any step
  EXPECT_EQ(Refusal(*engine), ErrorCode::kOverloaded);
  EXPECT_EQ(RefusalOf(*engine, ShortRequest(8)),
            "1 requests are waiting (--max-num-queued-reqs 1): try again later");
  ASSERT_TRUE(engine->Step());  // four run, one waits
  EXPECT_EQ(engine->Counters().num_requests_running, 4);
  EXPECT_EQ(Refusal(*engine), ErrorCode::kOverloaded);
  RunUntilIdle(*engine);
  for (const Generated& answer : answers) EXPECT_EQ(answer.tokens.size(), 4);
  EXPECT_EQ(Refusal(*engine, 5), std::nullopt);
}

TEST(QueueLimitTest, WhatCanNeverBeTakenIsTheRequestsFault) {
  const auto engine = MakeTestEngine({.max_num_seqs = 4, .max_num_queued_reqs = 1});
  EXPECT_EQ(Refusal(*engine, 5), std::nullopt);
  EXPECT_EQ(Refusal(*engine, 6), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Refusal(*MakeTestEngine({.max_num_seqs = 4}), 1000), std::nullopt) << "no limit";
}

// Eight blocks of 16 hold one prompt of 100 tokens: the others wait, although slots are free.
TEST(QueueLimitTest, SlotsWithoutRoomInTheCacheAreNotFree) {
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kNone,
                                      .num_blocks = 8,
                                      .max_num_seqs = 8,
                                      .max_model_len = 128,
                                      .prefix_caching = false,
                                      .max_num_queued_reqs = 2});
  std::vector<Generated> answers(3);
  for (Generated& answer : answers) Submit(*engine, ShortRequest(100), &answer);
  ASSERT_TRUE(engine->Step());
  ASSERT_EQ(engine->Counters().num_requests_running, 1);
  ASSERT_EQ(engine->Counters().num_requests_waiting, 2);
  EXPECT_EQ(Refusal(*engine), ErrorCode::kOverloaded);
  RunUntilIdle(*engine);
  EXPECT_EQ(Refusal(*engine), std::nullopt);
}

}  // namespace
}  // namespace outrider
