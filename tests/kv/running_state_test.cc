// Running states in the pool of pages: what a request holds, where states are left for others, and
// what a prefix needs of them.
#include "outrider/kv/running_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outrider/kv/cache_coordinator.h"
#include "outrider/kv/network_cache.h"
#include "outrider/kv/state_cache.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

constexpr RunningStateSpec kSpec = {.heads = 6, .head_dim = 8, .conv = 4};

/// Pages of 16 tokens that hold 11 pieces of a state, or one of kept rows.
CacheConfig StateConfig(int32_t num_pages) {
  CacheConfig config = FullHistoryCache(num_pages, 16);
  config.groups.front().unit_bytes = 400;
  config.state = kSpec;
  return config;
}

std::vector<BlockKey> KeysOf(int32_t tokens, int32_t first = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < tokens; ++i) ids.push_back(first + i);
  BlockKeyHasher hasher(16, 0);
  BlockKeys keys = hasher.Start("");
  hasher.Extend(ids, keys);
  return keys.blocks;
}

/// Runs a prompt in one step.
CacheTables Compute(CacheCoordinator& cache, const std::vector<BlockKey>& keys, int32_t tokens) {
  CacheTables tables = cache.MakeTables(1000);
  const int32_t cached = cache.SharePrefix(tables, keys, tokens - 1).tokens;
  const bool reserved = cache.Reserve(tables, cached, tokens, tokens);
  EXPECT_TRUE(reserved);
  cache.MakeCheckpoints(tables, keys, cached, tokens, tokens - 1);
  cache.Publish(tables, keys, tokens);
  cache.Advance(tables, tokens);
  return tables;
}

TEST(RunningStateSpecTest, PiecesOfHeadsFillPages) {
  EXPECT_EQ(kSpec.StateNumbers(), 64 + 3 * 3 * 8);
  EXPECT_EQ(kSpec.RowNumbers(), 32 * 6 * 8);
  EXPECT_EQ(kSpec.StateBytes(), 6 * 136 * 4);
  EXPECT_EQ(kSpec.LeastPageBytes(), 6144);
  EXPECT_EQ(kSpec.StatePages(6144), 1);
  EXPECT_EQ(kSpec.StatePages(2 * 136 * 4), 3);
  EXPECT_EQ(kSpec.StatePages(4 * 136 * 4 + 1), 2);
  EXPECT_EQ(kSpec.RowPages(6144), 6);
  EXPECT_EQ(kSpec.RowPages(3 * 6144 - 1), 3);
  EXPECT_EQ(RunningStateSpec{}.StatePages(1), 0);
}

TEST(RunningStateSpecTest, PiecesDoNotOverlap) {
  std::vector<float> memory(4 * 2000);
  const StateCache cache = {reinterpret_cast<std::byte*>(memory.data()), 8000, kSpec};
  const std::vector<int32_t> pages = {3, 1};
  ASSERT_EQ(kSpec.StatePages(8000), 1);
  std::vector<float*> pieces;
  for (int32_t h = 0; h < 6; ++h) pieces.push_back(cache.State(pages, h));
  for (int32_t h = 0; h < 6; ++h) EXPECT_EQ(pieces[h], memory.data() + 3 * 2000 + h * 136);
  const StateCache narrow = {cache.data, 6200, kSpec};
  const std::vector<int32_t> rows = {4, 0, 2, 1, 3, 0};
  EXPECT_EQ(narrow.Rows(rows, 2), memory.data() + 2 * 1550);
}

TEST(RunningStateTest, PagesAreLargeEnoughForAPiece) {
  NetworkCache network;
  network.groups = {{.name = "full history"}};
  network.layers = {{.group = 0, .width = 40}};
  network.state = kSpec;
  const CacheConfig config = MakeCacheConfig(network, DType::kBF16, 10, 1);
  EXPECT_EQ(config.groups.front().tokens_per_block, 80);  // 76.8 of 80 bytes, in whole blocks
  EXPECT_EQ(config.PageBytes(), 6400);
  network.state = {};
  EXPECT_EQ(MakeCacheConfig(network, DType::kBF16, 10, 1).groups.front().tokens_per_block, 10);
}

TEST(RunningStateTest, ARequestHoldsAStateAndKeptRows) {
  const CacheConfig config = StateConfig(100);
  ASSERT_EQ(config.StatePages(), 1);
  ASSERT_EQ(config.StateRowPages(), 6);
  CacheCoordinator cache(config);
  CacheTables tables = cache.MakeTables(1000);
  ASSERT_TRUE(cache.Reserve(tables, 0, 20, 20));
  EXPECT_EQ(cache.pool().num_free(), 100 - 2 - 1 - 6);
  EXPECT_EQ(tables.state().state.size(), 1U);
  EXPECT_EQ(tables.state().rows.size(), 6U);
  ASSERT_TRUE(cache.Reserve(tables, 20, 40, 40));  // they grow no more
  EXPECT_EQ(cache.pool().num_free(), 100 - 3 - 1 - 6);
  // Beside it, for a while, the state that it starts from.
  EXPECT_EQ(config.MostPages(40, 20), 3 + 6 + 2);
  cache.Clear(tables);
  EXPECT_EQ(cache.pool().num_free(), 100);
}

TEST(RunningStateTest, NothingIsTakenWhereItDoesNotAllFit) {
  CacheCoordinator cache(StateConfig(8));
  CacheTables tables = cache.MakeTables(1000);
  EXPECT_FALSE(cache.Reserve(tables, 0, 20, 20));
  EXPECT_EQ(cache.pool().num_free(), 8);
  EXPECT_TRUE(cache.Reserve(tables, 0, 16, 16));
  EXPECT_EQ(cache.pool().num_free(), 0);
}

TEST(RunningStateTest, CheckpointsStandApartAndAtTheLastPlace) {
  CacheConfig config = StateConfig(100);
  config.state.heads = 200;  // 11 pieces a page: the entries of 304 tokens take as many pages
  config.num_pages = 1000;
  ASSERT_EQ(config.StatePages(), 19);
  ASSERT_EQ(config.TokensPerCheckpoint(), 304);
  CacheCoordinator cache(config);
  const std::vector<BlockKey> keys = KeysOf(700);
  CacheTables tables = cache.MakeTables(1000);
  const auto places = [&] {
    std::vector<int32_t> tokens;
    for (const StateCheckpoint& c : tables.state().checkpoints) tokens.push_back(c.tokens);
    return tokens;
  };
  cache.MakeCheckpoints(tables, keys, 0, 300, 690);
  EXPECT_THAT(places(), ElementsAre());
  cache.MakeCheckpoints(tables, keys, 300, 690, 690);
  EXPECT_THAT(places(), ElementsAre(304, 608, 688));
  cache.MakeCheckpoints(tables, keys, 690, 700, 690);
  EXPECT_THAT(places(), ElementsAre(304, 608, 688));
  EXPECT_EQ(cache.pool().num_free(), 1000 - 3 * 19);
  cache.Clear(tables);
  EXPECT_EQ(cache.pool().num_free(), 1000);
}

TEST(RunningStateTest, APrefixNeedsItsState) {
  CacheCoordinator cache(StateConfig(60));
  const std::vector<BlockKey> keys = KeysOf(100);
  CacheTables first = Compute(cache, keys, 100);
  // Blocks of 96 tokens, and a state at each place that the interval of 16 tokens gives.
  ASSERT_EQ(cache.config().TokensPerCheckpoint(), 16);
  EXPECT_EQ(cache.FindPrefix(keys, 99), 96);
  EXPECT_EQ(cache.FindPrefix(keys, 60), 48);
  CacheTables second = cache.MakeTables(1000);
  EXPECT_EQ(cache.SharePrefix(second, keys, 60).tokens, 48);
  EXPECT_EQ(second.state().restored.size(), 1U);
  EXPECT_TRUE(second.state().state.empty());
  ASSERT_TRUE(cache.Reserve(second, 48, 60, 60));
  EXPECT_NE(second.state().restored, second.state().state);
  cache.Advance(second, 60);
  EXPECT_TRUE(second.state().restored.empty());  // it has read it
  EXPECT_EQ(cache.FindPrefix(keys, 60), 48);     // and left it
  cache.Clear(first);
  cache.Clear(second);
  EXPECT_EQ(cache.pool().num_free(), 60);
}

// Entries alone resume nothing; a state that was forgotten is passed by an earlier one.
TEST(RunningStateTest, WithoutAStateAnEarlierPlaceIsFound) {
  CacheConfig config = StateConfig(400);
  config.state.heads = 100;  // 10 pages
  ASSERT_EQ(config.StatePages(), 10);
  CacheCoordinator cache(config);
  const std::vector<BlockKey> keys = KeysOf(400);
  CacheTables first = cache.MakeTables(1000);
  ASSERT_TRUE(cache.Reserve(first, 0, 400, 400));
  cache.Publish(first, keys, 400);
  cache.Advance(first, 400);
  EXPECT_EQ(cache.FindPrefix(keys, 399), 0);
  cache.MakeCheckpoints(first, keys, 0, 400, 399);
  ASSERT_EQ(first.state().checkpoints.size(), 3U);  // 160, 320, 384
  EXPECT_EQ(cache.FindPrefix(keys, 399), 0);        // nobody has computed them yet
  CacheCoordinator other(config);
  CacheTables whole = Compute(other, keys, 400);
  EXPECT_EQ(other.FindPrefix(keys, 399), 384);
  EXPECT_EQ(other.FindPrefix(keys, 383), 320);
  EXPECT_EQ(other.FindPrefix(keys, 319), 160);
  EXPECT_EQ(other.FindPrefix(keys, 159), 0);
  // All pages are taken but 19 of the 30 of the three states: the oldest is incomplete.
  CacheTables greedy = other.MakeTables(100000);
  const int32_t pages = other.pool().num_free() - 29 - 100 - 10;
  ASSERT_TRUE(other.Reserve(greedy, 0, 16 * pages, 16 * pages));
  EXPECT_EQ(other.FindPrefix(keys, 319), 0);
  EXPECT_EQ(other.FindPrefix(keys, 399), 384);
  other.Clear(greedy);
  other.Clear(whole);
}

// Of states and entries the last place counts that has both: a state stays behind entries that were
// given up.
TEST(RunningStateTest, WithoutItsEntriesAStateIsPassedBy) {
  CacheCoordinator cache(StateConfig(60));
  const std::vector<BlockKey> keys = KeysOf(100);
  CacheTables first = Compute(cache, keys, 100);
  cache.Clear(first);
  // What was used last is given up last: the state at 48, its entries, the state at 96.
  for (const int32_t tokens : {96, 48}) {
    CacheTables reader = cache.MakeTables(1000);
    ASSERT_EQ(cache.SharePrefix(reader, keys, tokens + 3).tokens, tokens);
    cache.Clear(reader);
  }
  // All pages that hold nothing, the four other states, and the last of the six blocks of entries.
  CacheTables greedy = cache.MakeTables(1000);
  const int32_t pages = (60 - 6 - 6) + 4 + 1;
  ASSERT_TRUE(cache.Reserve(greedy, 0, 16 * (pages - 7), 16 * (pages - 7)));
  ASSERT_EQ(cache.pool().num_free(), 60 - pages);
  EXPECT_EQ(cache.FindPrefix(keys, 99), 48);
  cache.Clear(greedy);
  // With the entries again the state is found, which nobody made anew.
  CacheTables second = cache.MakeTables(1000);
  ASSERT_EQ(cache.SharePrefix(second, keys, 99).tokens, 48);
  ASSERT_TRUE(cache.Reserve(second, 48, 96, 96));
  cache.Publish(second, keys, 96);
  EXPECT_EQ(cache.FindPrefix(keys, 99), 96);
  cache.Clear(second);
  EXPECT_EQ(cache.pool().num_free(), 60);
}

// What a step has not computed is nobody's state.
TEST(RunningStateTest, ACheckpointIsFoundOnceItsTokensAreFinal) {
  CacheCoordinator cache(StateConfig(60));
  const std::vector<BlockKey> keys = KeysOf(64);
  CacheTables tables = cache.MakeTables(1000);
  ASSERT_TRUE(cache.Reserve(tables, 0, 40, 64));
  cache.MakeCheckpoints(tables, keys, 0, 40, 63);
  EXPECT_EQ(cache.FindPrefix(keys, 63), 0);
  cache.Publish(tables, keys, 20);  // a drafter's entries are final no further
  EXPECT_EQ(cache.FindPrefix(keys, 63), 16);
  cache.Clear(tables);  // aborted
  EXPECT_EQ(cache.FindPrefix(keys, 63), 16);
  EXPECT_EQ(cache.pool().num_free(), 60);
}

TEST(RunningStateTest, NoStateIsLeftWhereNoPagesAreFree) {
  CacheCoordinator cache(StateConfig(11));
  const std::vector<BlockKey> keys = KeysOf(48);
  CacheTables tables = cache.MakeTables(1000);
  ASSERT_TRUE(cache.Reserve(tables, 0, 48, 48));
  ASSERT_EQ(cache.pool().num_free(), 1);
  cache.MakeCheckpoints(tables, keys, 0, 48, 47);
  EXPECT_EQ(tables.state().checkpoints.size(), 1U);
  EXPECT_EQ(tables.state().checkpoints.front().tokens, 16);
  EXPECT_EQ(cache.pool().num_free(), 0);
}

}  // namespace
}  // namespace outrider
