// An engine that pauses: what becomes of requests, and that nothing changes in what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "outrider/engine/kv_events.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

using testing::ElementsAre;

GenerationRequest PausedRequest(int32_t length, uint32_t seed, int32_t max_tokens = 24) {
  std::mt19937 random(seed);
  GenerationRequest request;
  for (int32_t i = 0; i < length; ++i) {
    request.prompt_token_ids.push_back(static_cast<int32_t>(6 + random() % 1500));
  }
  request.sampling.temperature = 1;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  return request;
}

// Steps until there is nothing to do; a paused engine has requests all the same.
void RunUntilStill(Engine& engine) {
  while (engine.Step()) {
  }
}

class PauseTest : public testing::TestWithParam<bool> {
 protected:
  TestEngineOptions options_ = {.queued = GetParam()};
};

TEST_P(PauseTest, KeptRequestsGoOnWithTheSameTokens) {
  const GenerationRequest request = PausedRequest(40, 3);
  const auto alone = MakeTestEngine(options_);
  const Generated expected = RunOne(*alone, request);

  const auto engine = MakeTestEngine(options_);
  Generated first;
  Submit(*engine, request, &first);
  for (int i = 0; i < 3; ++i) engine->Step();
  bool paused = false;
  engine->Pause(PauseMode::kKeep, true, [&] { paused = engine->Counters().paused; });
  RunUntilStill(*engine);
  EXPECT_TRUE(paused);  // whoever is told so sees it
  EXPECT_TRUE(engine->Counters().paused);
  EXPECT_LT(first.tokens.size(), 24U);
  const size_t so_far = first.tokens.size();
  Generated second;  // comes during the pause, and waits
  Submit(*engine, request, &second);
  RunUntilStill(*engine);
  EXPECT_EQ(first.tokens.size(), so_far);
  EXPECT_TRUE(second.tokens.empty());
  EXPECT_EQ(engine->Counters().num_requests_waiting, 1);
  bool resumed = false;
  engine->Resume([&] { resumed = true; });
  RunUntilIdle(*engine);
  EXPECT_TRUE(resumed);
  EXPECT_FALSE(engine->Counters().paused);
  EXPECT_EQ(first.tokens, expected.tokens);
  EXPECT_EQ(second.tokens, expected.tokens);
}

TEST_P(PauseTest, WaitsForRequestsThatRun) {
  const auto engine = MakeTestEngine(options_);
  Generated first;
  Submit(*engine, PausedRequest(40, 3), &first);
  engine->Step();
  size_t at_pause = 0;
  engine->Pause(PauseMode::kWait, true, [&] { at_pause = first.tokens.size(); });
  Generated second;
  engine->Step();
  Submit(*engine, PausedRequest(20, 4), &second);
  RunUntilStill(*engine);
  EXPECT_EQ(at_pause, 24U);
  EXPECT_TRUE(second.tokens.empty());
  engine->Resume([] {});
  RunUntilIdle(*engine);
  EXPECT_EQ(second.tokens.size(), 24U);
}

TEST_P(PauseTest, AbortsRequestsThatRunAndWait) {
  const auto engine = MakeTestEngine(options_);
  Generated first;
  Submit(*engine, PausedRequest(40, 3), &first);
  for (int i = 0; i < 2; ++i) engine->Step();
  bool paused = false;
  engine->Pause(PauseMode::kAbort, true, [&] { paused = true; });
  RunUntilStill(*engine);
  EXPECT_TRUE(paused);
  EXPECT_LT(first.tokens.size(), 24U);
  EXPECT_EQ(engine->Counters().finished_abort, 1);
  // One that is held can be aborted, too.
  Generated second;
  const RequestId id = Submit(*engine, PausedRequest(20, 4), &second);
  RunUntilStill(*engine);
  engine->Abort(id);
  RunUntilStill(*engine);
  EXPECT_EQ(engine->Counters().finished_abort, 2);
  EXPECT_EQ(engine->Counters().num_requests_waiting, 0);
}

TEST_P(PauseTest, EmptiesThePrefixCache) {
  const auto engine = MakeTestEngine(options_);
  const auto hits = [&] {
    const int64_t before = engine->Counters().prefix_cache_hits;
    const Generated out = RunOne(*engine, PausedRequest(100, 5, 4));
    return engine->Counters().prefix_cache_hits - before;
  };
  EXPECT_EQ(hits(), 0);
  EXPECT_GT(hits(), 0);
  engine->ForgetPrefixes([] {});
  EXPECT_EQ(hits(), 0);
  EXPECT_GT(hits(), 0);
  engine->Pause(PauseMode::kWait, true, [] {});
  engine->Resume([] {});
  EXPECT_GT(hits(), 0);  // it never came to rest
  engine->Pause(PauseMode::kWait, true, [] {});
  RunUntilStill(*engine);
  engine->Resume([] {});
  EXPECT_EQ(hits(), 0);
}

INSTANTIATE_TEST_SUITE_P(Executors, PauseTest, testing::Bool(),
                         [](const auto& executor) { return executor.param ? "Queued" : "Direct"; });

// A router's copy of the index, by what it is told.
class Index {
 public:
  void Take(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) {
      if (event.kind == KvEvent::Kind::kCleared) blocks_.clear();
      for (size_t i = 0; i < event.hashes.size(); ++i) {
        if (event.kind == KvEvent::Kind::kRemoved) {
          EXPECT_EQ(blocks_.erase(event.hashes[i]), 1U);
          continue;
        }
        const auto first = event.token_ids.begin() + static_cast<int64_t>(i) * event.block_size;
        std::optional<uint64_t> parent = event.parent;
        if (i > 0) parent = event.hashes[i - 1];
        blocks_[event.hashes[i]] = {parent, {first, first + event.block_size}};
      }
    }
  }

  /// How many tokens of a prompt can be found, by tokens alone.
  int32_t Find(const std::vector<int32_t>& prompt) const {
    std::optional<uint64_t> parent;
    size_t found = 0;
    for (bool more = true; more;) {
      more = false;
      for (const auto& [hash, block] : blocks_) {
        const size_t size = block.tokens.size();
        if (block.parent != parent || found + size > prompt.size()) continue;
        if (!std::equal(block.tokens.begin(), block.tokens.end(),
                        prompt.begin() + static_cast<int64_t>(found))) {
          continue;
        }
        parent = hash;
        found += size;
        more = true;
        break;
      }
    }
    return static_cast<int32_t>(found);
  }

  size_t size() const { return blocks_.size(); }

 private:
  struct Block {
    std::optional<uint64_t> parent;
    std::vector<int32_t> tokens;
  };
  std::map<uint64_t, Block> blocks_;
};

class KvEventsTest : public testing::TestWithParam<int32_t> {};

// Blocks of the pool, whatever lies behind it.
TEST_P(KvEventsTest, ASubscriberKnowsWhatTheCacheHas) {
  TestEngineOptions options;
  options.host_pages = GetParam();
  options.num_blocks = 80;  // of 16 tokens: old ones are forgotten
  options.max_num_seqs = 2;
  options.max_model_len = 400;
  const auto engine = MakeTestEngine(options);
  Index index;
  engine->SetKvEventSink([&](std::vector<KvEvent>&& events) { index.Take(events); });
  std::mt19937 random(11);
  int64_t found = 0;
  for (int round = 0; round < 40; ++round) {
    const auto seed = static_cast<uint32_t>(random() % 8);
    const GenerationRequest request = PausedRequest(60 + static_cast<int32_t>(seed) * 20, seed, 3);
    const int32_t expected = index.Find(request.prompt_token_ids);
    const int64_t before = engine->Counters().prefix_cache_hits;
    const Generated out = RunOne(*engine, request);
    const int64_t hits = engine->Counters().prefix_cache_hits - before;
    // The engine leaves tokens of the prompt's end to compute, so a whole block less at most.
    EXPECT_LE(hits, expected) << round;
    EXPECT_GE(hits, expected - 16) << round;
    found += hits;
  }
  EXPECT_GT(found, 0);
  EXPECT_GT(index.size(), 0U);
  engine->ForgetPrefixes([] {});
  engine->Step();
  EXPECT_EQ(index.size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(HostPages, KvEventsTest, testing::Values(0, 200));

// Two requests that are admitted at a time may have blocks that come back.
TEST(KvEventLogTest, KnowsWhoseBlocksWerePublished) {
  KvEventLog log(2);
  BlockKeyHasher hasher(2, 0);
  const std::array<std::vector<int32_t>, 2> tokens = {{{1, 2, 3, 4}, {5, 6, 7, 8}}};
  const std::array<std::string, 2> salts = {"", "salt"};
  std::array<BlockKeys, 2> keys;
  std::vector<KvEventLog::Writer> writers;
  for (size_t i = 0; i < 2; ++i) {
    keys[i] = hasher.Start(salts[i]);
    hasher.Extend(tokens[i], keys[i]);
    writers.push_back({tokens[i], keys[i], salts[i]});
  }
  using Kind = BlockPoolEvent::Kind;
  *log.pool_log() = {{Kind::kStored, keys[0].blocks[1]},
                     {Kind::kStored, keys[1].blocks[0]},
                     {Kind::kStored, keys[1].blocks[1]}};
  log.TakePublished(writers);
  const std::vector<KvEvent> events = log.TakeEvents();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_THAT(events[0].token_ids, ElementsAre(3, 4));
  EXPECT_TRUE(events[0].parent);
  EXPECT_THAT(events[1].token_ids, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(events[1].cache_salt, "salt");
}

TEST(KvEventLogTest, JoinsBlocksThatFollowEachOther) {
  KvEventLog log(2);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  BlockKeyHasher hasher(2, 1);
  BlockKeys keys = hasher.Start("");
  hasher.Extend(tokens, keys);
  ASSERT_EQ(keys.blocks.size(), 3U);
  const std::string no_salt;
  using Kind = BlockPoolEvent::Kind;
  BlockKey unknown = keys.blocks[0];
  unknown[0] ^= 1;
  *log.pool_log() = {{Kind::kStored, keys.blocks[0]},
                     {Kind::kRemoved, unknown},  // nobody was told of it
                     {Kind::kStored, keys.blocks[1]}};
  log.TakePublished(std::vector{KvEventLog::Writer{tokens, keys, no_salt}});
  std::vector<KvEvent> events = log.TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].hashes.size(), 2U);
  EXPECT_FALSE(events[0].parent);
  EXPECT_THAT(events[0].token_ids, ElementsAre(1, 2, 3, 4));
  *log.pool_log() = {{Kind::kRemoved, keys.blocks[0]}, {Kind::kStored, keys.blocks[2]}};
  log.TakePublished(std::vector{KvEventLog::Writer{tokens, keys, no_salt}});
  const uint64_t second = events[0].hashes[1];
  events = log.TakeEvents();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::kRemoved);
  EXPECT_EQ(events[1].parent, second);
  EXPECT_THAT(events[1].token_ids, ElementsAre(5, 6));
}

}  // namespace
}  // namespace outrider
