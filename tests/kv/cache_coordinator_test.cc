// Cache groups: what each kind answers, then random requests over a symbolic cache of mixed groups
// whose cells hold a hash of exactly the tokens that the real entry would depend on.
#include "outrider/kv/cache_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace outrider {
namespace {

using ::testing::ElementsAre;
using enum CacheGroupKind;

constexpr int32_t kNone = CacheTables::kNoPage;

CacheGroupSpec Full(int32_t tokens_per_block, int32_t unit_tokens = 1) {
  return {.name = "full", .tokens_per_block = tokens_per_block, .unit_tokens = unit_tokens};
}

CacheGroupSpec Window(int32_t window, int32_t tokens_per_block) {
  return {.name = "window",
          .kind = kSlidingWindow,
          .tokens_per_block = tokens_per_block,
          .window = window};
}

std::vector<int32_t> NumberedTokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

/// A request that computes given tokens, without drafts.
class Request {
 public:
  Request(CacheCoordinator& cache, const std::vector<int32_t>& tokens)
      : cache_(cache), tables_(cache.MakeTables(1000)) {
    BlockKeyHasher hasher(cache.config().TokensPerKey(), 0);
    keys_ = hasher.Start("");
    hasher.Extend(tokens, keys_);
    computed_ =
        cache_.SharePrefix(tables_, keys_.blocks, static_cast<int32_t>(tokens.size()) - 1).tokens;
  }

  int32_t computed() const { return computed_; }
  std::vector<int32_t> Table(int32_t group) const {
    return {tables_.blocks(group).begin(), tables_.blocks(group).end()};
  }

  bool Compute(int32_t end) {
    if (!cache_.Reserve(tables_, computed_, end, end)) return false;
    computed_ = end;
    cache_.Publish(tables_, keys_.blocks, end);
    cache_.Advance(tables_, end);
    return true;
  }

  void Finish() { cache_.Clear(tables_); }

 private:
  CacheCoordinator& cache_;
  CacheTables tables_;
  BlockKeys keys_;
  int32_t computed_ = 0;
};

TEST(CacheCoordinatorTest, BlocksOfWindowsThatNobodyResumesWithAreNotPublished) {
  CacheConfig config{.groups = {Full(16), Window(6, 4)}, .num_pages = 40};
  CacheCoordinator cache(config);
  const std::vector<int32_t> tokens = NumberedTokens(40);
  Request request(cache, tokens);
  ASSERT_TRUE(request.Compute(40));
  BlockKeyHasher hasher(config.TokensPerKey(), 0);
  BlockKeys keys = hasher.Start("");
  hasher.Extend(tokens, keys);
  std::vector<size_t> held;
  for (size_t block = 0; block < keys.blocks.size(); ++block) {
    BlockKey key = keys.blocks[block];
    key.back() ^= 1;
    if (cache.pool().Holds(key)) held.push_back(block);
  }
  // Rows from 16, 32 and 48 on read tokens from 11, 27 and 43 on, in blocks 2, 6 and 10.
  EXPECT_THAT(held, ElementsAre(2, 3, 6, 7));
  request.Finish();
  Request again(cache, tokens);
  EXPECT_EQ(again.computed(), 32);
  again.Finish();
}

TEST(CacheGroupTest, DeepSeekV4FitsTheInterface) {
  // What the groups of DeepSeek-V4 answer (window 128, compression by 4 and by 128): the first
  // token whose entry a row at 1000 reads, blocks for 1000 tokens, leading blocks unread from
  // position 1000.
  struct Case {
    CacheGroupSpec spec;
    int32_t first_token_read_at_1000;
    int32_t blocks;
    int32_t unread;
  };
  const Case cases[] = {
      // Recent tokens, uncompressed, and the rows of compressors by 128, whose window is as long.
      {Window(128, 64), 873, 16, 13},
      // Entries of 4 tokens with the indexer's keys, and those of 128: 64 and 2 per block.
      {Full(256, 128), 0, 4, 0},
      // Rows of the compressor by 4 with overlap: the window that is open and the one before.
      {Window(8, 4), 993, 250, 248},
  };
  CacheConfig all{.num_pages = 2000};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.spec.window);
    EXPECT_EQ(c.spec.FirstTokenRead(1000), c.first_token_read_at_1000);
    EXPECT_EQ(c.spec.BlocksBefore(1000), c.blocks);
    EXPECT_EQ(c.spec.BlocksUnreadFrom(1000), c.unread);
    all.groups.push_back(c.spec);
  }
  all.Check();
  EXPECT_EQ(all.TokensPerKey(), 4);
  EXPECT_EQ(all.TokensPerResume(), 256);

  // A prefix is resumed where all of them can: at a multiple of 256 tokens.
  CacheCoordinator cache(all);
  Request first(cache, NumberedTokens(600));
  ASSERT_TRUE(first.Compute(600));
  Request second(cache, NumberedTokens(600));
  EXPECT_EQ(second.computed(), 512);
  first.Finish();
  second.Finish();
  EXPECT_EQ(cache.pool().num_free(), 2000);
}

TEST(CacheGroupTest, PageBytesAreThoseOfTheLargestBlock) {
  CacheConfig config{.groups = {Full(16, 4), Window(32, 8)}, .num_pages = 10};
  config.groups[0].unit_bytes = 1200;
  config.groups[1].unit_bytes = 700;
  EXPECT_EQ(config.PageBytes(), 5600);
}

TEST(CacheGroupTest, MostTokensIsWhereMostPagesEnds) {
  const CacheConfig full = FullHistoryCache(1, 64);
  EXPECT_EQ(full.MostTokens(0, 512), 0);
  EXPECT_EQ(full.MostTokens(3, 512), 192);
  EXPECT_EQ(full.MostTokens(INT32_MAX, 512), CacheConfig::kMostTokens);
  const CacheConfig mixed{.groups = {Full(192), Window(512, 64)}, .num_pages = 1};
  for (const int64_t pages : {1, 2, 7, 20, 500}) {
    const auto tokens = static_cast<int32_t>(mixed.MostTokens(pages, 100));
    EXPECT_LE(mixed.MostPages(tokens, 100), pages);
    EXPECT_GT(mixed.MostPages(tokens + 1, 100), pages);
  }
  // A window needs pages for itself and the step's rows only: 611 tokens are 11 blocks at most.
  EXPECT_EQ(mixed.MostTokens(11 + 1000, 100), 192 * 1000);
}

TEST(CacheCoordinatorTest, BlocksThatLeftAWindowAreFreedWhileTheRequestRuns) {
  CacheCoordinator cache({.groups = {Full(4), Window(6, 4)}, .num_pages = 20});
  Request request(cache, NumberedTokens(100));
  ASSERT_TRUE(request.Compute(9));
  // The row at 9 reads tokens from 4 on.
  EXPECT_THAT(request.Table(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(request.Table(1), ElementsAre(kNone, 4, 5));
  ASSERT_TRUE(request.Compute(12));
  EXPECT_THAT(request.Table(1), ElementsAre(kNone, 4, 5));
  ASSERT_TRUE(request.Compute(13));  // reads from 8 on
  EXPECT_EQ(request.Table(1)[1], kNone);
  EXPECT_EQ(cache.pool().num_free(), 20 - 4 - 2);
  request.Finish();
  EXPECT_EQ(cache.pool().num_free(), 20);
}

TEST(CacheCoordinatorTest, RowsThatMayRunAgainKeepTheirWindow) {
  CacheCoordinator cache({.groups = {Window(6, 4)}, .num_pages = 20, .rerun_tokens = 2});
  Request request(cache, NumberedTokens(100));
  ASSERT_TRUE(request.Compute(10));  // the row at 8 reads from 3 on
  EXPECT_NE(request.Table(0)[0], kNone);
  ASSERT_TRUE(request.Compute(11));
  EXPECT_EQ(request.Table(0)[0], kNone);
}

TEST(CacheCoordinatorTest, AHitEndsWhereEveryGroupCanResume) {
  CacheCoordinator cache({.groups = {Full(8), Window(6, 4)}, .num_pages = 40});
  Request writer(cache, NumberedTokens(30));
  ASSERT_TRUE(writer.Compute(29));
  writer.Finish();
  // Both groups are there up to 28; the full one ends its blocks at multiples of 8.
  Request reader(cache, NumberedTokens(60));
  EXPECT_EQ(reader.computed(), 24);
  // Before 24 the window reads from 19 on: its blocks before 16 are not taken.
  EXPECT_THAT(reader.Table(1),
              ElementsAre(kNone, kNone, kNone, kNone, ::testing::Ne(kNone), ::testing::Ne(kNone)));
  reader.Finish();
  EXPECT_EQ(cache.pool().num_free(), 40);
}

TEST(CacheCoordinatorTest, AHitNeedsTheWindowBeforeItsEnd) {
  CacheCoordinator cache({.groups = {Full(4), Window(5, 4)}, .num_pages = 20});
  Request writer(cache, NumberedTokens(20));
  for (int32_t end = 1; end < 20; ++end) ASSERT_TRUE(writer.Compute(end));
  // Blocks that left the window are free, but still found.
  Request reader(cache, NumberedTokens(13));
  EXPECT_EQ(reader.computed(), 12);
  reader.Finish();
  // When all free pages are taken, only what the writer holds is left.
  CacheTables tables = cache.MakeTables(100);
  ASSERT_TRUE(cache.Reserve(tables, 0, 0, cache.pool().num_free() * 4));
  EXPECT_EQ(Request(cache, NumberedTokens(13)).computed(), 0);
  EXPECT_EQ(Request(cache, NumberedTokens(40)).computed(), 16);
}

TEST(CacheCoordinatorTest, ReserveIsAllOrNothing) {
  CacheCoordinator cache({.groups = {Full(4), Window(4, 4)}, .num_pages = 5});
  CacheTables tables = cache.MakeTables(100);
  EXPECT_FALSE(cache.Reserve(tables, 0, 12, 12));  // 3 + 3
  EXPECT_EQ(cache.pool().num_free(), 5);
  EXPECT_TRUE(cache.Reserve(tables, 0, 8, 12));  // 3 + 2
  EXPECT_EQ(cache.pool().num_free(), 0);
  cache.Clear(tables);
  EXPECT_EQ(cache.pool().num_free(), 5);
}

uint64_t HashOf(const std::vector<int32_t>& tokens, int32_t end, int32_t group) {
  uint64_t hash = 1469598103934665603ULL + static_cast<uint64_t>(group);
  for (int32_t i = 0; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens.at(static_cast<size_t>(i)))) * 1099511628211ULL;
  }
  return hash;
}

/// The entries of all pages; a row reads and writes as a network would. Every group has two layers
/// whose entries stand for as many tokens as its unit, and for one.
class SymbolicCache {
 public:
  explicit SymbolicCache(const CacheConfig& config) : config_(config) {
    size_t most = 0;
    for (const CacheGroupSpec& g : config.groups) {
      most = std::max(most, static_cast<size_t>(g.tokens_per_block));
    }
    cells_.assign(static_cast<size_t>(config.num_pages), std::vector<uint64_t>(2 * most, 0));
  }

  /// Writes what the row at `position` completes, then checks all that it reads.
  void Run(const CacheTables& tables, const std::vector<int32_t>& tokens, int32_t position) {
    for (int32_t g = 0; g < tables.num_groups(); ++g) {
      const CacheGroupSpec& spec = config_.groups[static_cast<size_t>(g)];
      for (const int32_t ratio : {1, spec.unit_tokens}) {
        const int32_t layer = ratio == 1 ? 0 : spec.tokens_per_block;
        if ((position + 1) % ratio == 0) {
          Cell(tables, g, ratio, layer, position / ratio) = HashOf(tokens, position + 1, g);
        }
        const int32_t first = (spec.FirstTokenRead(position) + ratio - 1) / ratio;
        for (int32_t e = first; e < (position + 1) / ratio; ++e) {
          RC_ASSERT(Cell(tables, g, ratio, layer, e) == HashOf(tokens, (e + 1) * ratio, g));
        }
      }
    }
  }

 private:
  /// `layer`: where the cells of the layer begin in a page.
  uint64_t& Cell(const CacheTables& tables, int32_t g, int32_t ratio, int32_t layer,
                 int32_t entry) {
    const int32_t per_block = config_.groups[static_cast<size_t>(g)].tokens_per_block / ratio;
    const int32_t page = tables.blocks(g)[static_cast<size_t>(entry / per_block)];
    RC_ASSERT(page != kNone);
    return cells_[static_cast<size_t>(page)][static_cast<size_t>(layer + entry % per_block)];
  }

  const CacheConfig& config_;
  std::vector<std::vector<uint64_t>> cells_;
};

CacheConfig RandomConfig() {
  CacheConfig config;
  const int32_t key = 4 * *rc::gen::inRange(1, 3);
  const int32_t num_groups = *rc::gen::inRange(1, 5);
  for (int32_t g = 0; g < num_groups; ++g) {
    const int32_t per_block = key * (g == 0 ? 1 : *rc::gen::element(1, 2, 4));
    if (*rc::gen::arbitrary<bool>()) {
      config.groups.push_back(Window(*rc::gen::inRange(1, 40), per_block));
    } else {
      config.groups.push_back(Full(per_block, *rc::gen::element(1, 2, 4)));
    }
  }
  config.rerun_tokens = *rc::gen::inRange(0, 3);
  return config;
}

RC_GTEST_PROP(CacheCoordinatorProperty, EveryEntryReadIsTheOneThatWouldBeComputed, ()) {
  constexpr int32_t kMaxTokens = 70;
  constexpr int32_t kMaxStep = 24;
  CacheConfig config = RandomConfig();
  config.num_pages =
      static_cast<int32_t>(config.MostPages(kMaxTokens, kMaxStep)) + *rc::gen::inRange(0, 40);
  CacheCoordinator cache(config);
  SymbolicCache cells(config);
  BlockKeyHasher hasher(config.TokensPerKey(), 0);

  struct Live {
    std::vector<int32_t> tokens;
    int32_t computed = 0;
    CacheTables tables;
    BlockKeys keys = {};
  };
  std::map<int32_t, Live> live;
  int32_t next_id = 0;
  for (int32_t turn = 0; turn < 60; ++turn) {
    const bool add = live.empty() || (live.size() < 4 && *rc::gen::inRange(0, 4) == 0);
    if (add) {
      // Few different tokens, so that prefixes are shared and diverge.
      Live request{.tokens = {}, .tables = cache.MakeTables(kMaxTokens)};
      const int32_t length = *rc::gen::inRange(1, kMaxTokens);
      const int32_t diverges = *rc::gen::inRange(0, kMaxTokens);
      for (int32_t i = 0; i < length; ++i) request.tokens.push_back(i < diverges ? 0 : 1);
      request.keys = hasher.Start("");
      hasher.Extend(request.tokens, request.keys);
      request.computed = cache.SharePrefix(request.tables, request.keys.blocks, length - 1).tokens;
      RC_ASSERT(request.computed < length);
      live.emplace(next_id++, std::move(request));
      continue;
    }
    const auto it = std::next(live.begin(), *rc::gen::inRange(0, static_cast<int>(live.size())));
    Live& r = it->second;
    const auto known = static_cast<int32_t>(r.tokens.size());
    if (r.computed == known || *rc::gen::inRange(0, 12) == 0) {
      cache.Clear(r.tables);
      live.erase(it);
      continue;
    }
    // Known rows, then drafts, of which some are right and become known.
    const int32_t rows = std::min(known - r.computed, *rc::gen::inRange(1, kMaxStep));
    const int32_t room = std::min(kMaxTokens - r.computed, kMaxStep) - rows;
    const int32_t drafts =
        r.computed + rows == known ? *rc::gen::inRange(0, std::min(room, 4) + 1) : 0;
    const int32_t end = r.computed + rows + drafts;
    if (!cache.Reserve(r.tables, r.computed, end, end)) {
      RC_ASSERT(live.size() > 1U);  // one request alone always fits
      cache.Clear(r.tables);
      live.erase(it);
      continue;
    }
    std::vector<int32_t> tokens = r.tokens;
    for (int32_t d = 0; d < drafts; ++d) tokens.push_back(*rc::gen::inRange(0, 2));
    const int32_t first = std::max(0, r.computed - config.rerun_tokens);
    for (int32_t p = first; p < end; ++p) cells.Run(r.tables, tokens, p);
    const int32_t accepted = *rc::gen::inRange(0, drafts + 1);
    tokens.resize(static_cast<size_t>(r.computed + rows + accepted));
    r.tokens = tokens.size() > r.tokens.size() ? tokens : r.tokens;
    r.computed += rows + accepted;
    if (r.computed == static_cast<int32_t>(r.tokens.size()) &&
        static_cast<int32_t>(r.tokens.size()) < kMaxTokens) {
      r.tokens.push_back(*rc::gen::inRange(0, 2));  // the bonus token
    }
    hasher.Extend(r.tokens, r.keys);
    cache.Publish(r.tables, r.keys.blocks, r.computed);
    cache.Advance(r.tables, r.computed);
  }
  for (auto& [id, request] : live) cache.Clear(request.tables);
  RC_ASSERT(cache.pool().num_free() == config.num_pages);
}

}  // namespace
}  // namespace outrider
