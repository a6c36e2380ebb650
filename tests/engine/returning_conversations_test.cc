// Conversations whose pages left the device's pool and come back from the host (HostCache): what is
// copied is as good as computed, bit for bit, drafters' entries and what they keep included.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "tests/engine/random_requests.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

constexpr int kConversations = 3;
constexpr int kTurns = 2;

std::vector<int32_t> SomeTokens(std::mt19937& random, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(6 + random() % 1500));
  return tokens;
}

/// Turns of several conversations, one after the other: each prompt is the whole of it so far.
struct Conversations {
  explicit Conversations(int32_t first_prompt) {
    for (int i = 0; i < kConversations; ++i) {
      prompts.push_back(SomeTokens(random, first_prompt + 7 * i));
    }
  }

  GenerationRequest Next(int conversation) const {
    GenerationRequest request;
    request.prompt_token_ids = prompts[static_cast<size_t>(conversation)];
    request.sampling.temperature = conversation % 2 == 0 ? 0.0F : 0.9F;
    request.sampling.seed = 7;
    request.sampling.max_tokens = 14;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 2;
    return request;
  }

  void Answered(int conversation, const std::vector<int32_t>& answer) {
    auto& prompt = prompts[static_cast<size_t>(conversation)];
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    for (const int32_t token : SomeTokens(random, 5)) prompt.push_back(token);
  }

  std::mt19937 random{5};
  std::vector<std::vector<int32_t>> prompts;
};

/// A pool that has room for one conversation of `most_tokens` tokens, and little more.
void LeaveRoomForOne(TestEngineOptions& options, int32_t most_tokens) {
  options.max_model_len = most_tokens;
  options.max_num_batched_tokens = 64;
  CacheConfig cache = TestCacheConfig(options);
  cache.rerun_tokens = options.k;
  options.num_blocks = static_cast<int32_t>(cache.MostPages(most_tokens, 64 + 2 + 2 * options.k));
}

/// Runs conversations with and without the tier. Returns tokens that came back.
int64_t ExpectSameWithTier(TestEngineOptions options, int32_t first_prompt = 150) {
  options.host_pages = 8 * options.num_blocks;
  const auto engine = MakeTestEngine(options);
  TestEngineOptions bare = options;
  bare.host_pages = 0;
  bare.prefix_caching = false;
  bare.late_seed.reset();
  bare.queued = false;
  bare.make_executor = nullptr;
  const auto cold = MakeTestEngine(bare);
  Conversations conversations(first_prompt);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int c = 0; c < kConversations; ++c) {
      const GenerationRequest request = conversations.Next(c);
      const Generated a = RunOne(*engine, request);
      const Generated b = RunOne(*cold, request);
      EXPECT_EQ(Difference(a, b), "") << "turn " << turn << " of " << c;
      // Drafts are those of a drafter that has seen everything, where its number is fixed.
      if (!options.adaptive) {
        EXPECT_EQ(a.stats.speculation.num_accepted_tokens, b.stats.speculation.num_accepted_tokens)
            << "turn " << turn << " of " << c;
      }
      conversations.Answered(c, a.tokens);
    }
  }
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.kv_cache_usage, 0);
  EXPECT_FALSE(counters.host_cache->failed);
  EXPECT_GT(counters.host_cache->pages_restored, 0);
  EXPECT_LE(counters.host_cache->pages_held, counters.host_cache->most_pages);
  EXPECT_EQ(cold->Counters().host_cache.has_value(), false);
  return counters.host_cache_hits;
}

struct ReturnCase {
  const char* name;
  DrafterKind drafter;
  bool adaptive = false;
  KvCacheForm form = KvCacheForm::kLatent;
};

class ReturningConversationsTest : public testing::TestWithParam<ReturnCase> {
 protected:
  static TestEngineOptions Options() {
    TestEngineOptions options{.drafter = GetParam().drafter,
                              .k = 3,
                              .adaptive = GetParam().adaptive,
                              .block_size = 8,
                              .cache_form = GetParam().form};
    if (GetParam().drafter == DrafterKind::kBlock) {
      options.checkpoint = TinyDSparkDirectory();
      options.cache_form = KvCacheForm::kHeads;
      options.k = 5;
    }
    if (GetParam().drafter == DrafterKind::kEagle3) {
      options.drafter_checkpoint = TinyEagle3Directory();
    }
    LeaveRoomForOne(options, FirstPrompt() + 100);
    return options;
  }
  static int32_t FirstPrompt() { return GetParam().drafter == DrafterKind::kBlock ? 280 : 150; }
};

TEST_P(ReturningConversationsTest, HaveTheBitsOfConversationsThatAreComputed) {
  // The beginnings of all conversations come back, at least.
  EXPECT_GE(ExpectSameWithTier(Options(), FirstPrompt()), 3 * 136);
}

TEST_P(ReturningConversationsTest, FromAFileWithStepsInFlight) {
  const TemporaryDirectory directory;
  TestEngineOptions options = Options();
  options.host_directory = directory.path();
  options.queued = options.adaptive;
  if (!options.queued) options.late_seed = 3;
  EXPECT_GE(ExpectSameWithTier(options, FirstPrompt()), 3 * 136);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, ReturningConversationsTest,
    testing::Values(ReturnCase{"None", DrafterKind::kNone}, ReturnCase{"Mtp", DrafterKind::kChain},
                    ReturnCase{"MtpThatLags", DrafterKind::kChain, true},
                    ReturnCase{"MtpHeads", DrafterKind::kChain, false, KvCacheForm::kHeads},
                    ReturnCase{"Repeated", DrafterKind::kRepeated, true},
                    ReturnCase{"Eagle3", DrafterKind::kEagle3},
                    ReturnCase{"Eagle3ThatLags", DrafterKind::kEagle3, true},
                    ReturnCase{"DSpark", DrafterKind::kBlock}),
    [](const auto& test) { return test.param.name; });

TEST(ReturningConversations, OfWindowsResumeWhereAllGroupsCan) {
  const SmallStepModel model(1600, 20);
  TestEngineOptions options{.checkpoint = model.directory(),
                            .dummy_seed = 3,
                            .k = 2,
                            .block_size = 4,
                            .cache_form = KvCacheForm::kHeads};
  LeaveRoomForOne(options, 250);
  EXPECT_GE(ExpectSameWithTier(options), 3 * 128);
}

TEST(ReturningConversations, WithARunningState) {
  for (const bool ling : {true, false}) {
    const ModelDirectory model(ling ? SmallLingConfig(1600) : SmallKimiConfig(1600));
    TestEngineOptions options{.checkpoint = model.directory(),
                              .dummy_seed = 13,
                              .drafter = DrafterKind::kNgram,
                              .k = 3,
                              .block_size = 16};
    LeaveRoomForOne(options, 250);
    EXPECT_GE(ExpectSameWithTier(options), 150) << ling;  // where states were left
  }
}

TEST(ReturningConversations, OfRanksThatShareTheModel) {
  TestEngineOptions options{.k = 3, .block_size = 8, .ranks = 2};
  LeaveRoomForOne(options, 250);
  EXPECT_GE(ExpectSameWithTier(options), 3 * 136);
}

// A tier that is smaller than what leaves the pool, and a crowd that is preempted beside it.
TEST(ReturningConversations, InACrowdBehindASmallTier) {
  TestEngineOptions options{.k = 3, .block_size = 8, .max_num_seqs = 4};
  LeaveRoomForOne(options, 250);
  TestEngineOptions bare = options;
  bare.prefix_caching = false;
  const auto cold = MakeTestEngine(bare);
  options.host_pages = 25;
  const auto engine = MakeTestEngine(options);
  Conversations conversations(100);
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<Generated> together(kConversations);
    for (int c = 0; c < kConversations; ++c) {
      Submit(*engine, conversations.Next(c), &together[static_cast<size_t>(c)]);
    }
    RunUntilIdle(*engine);
    for (int c = 0; c < kConversations; ++c) {
      const Generated& got = together[static_cast<size_t>(c)];
      EXPECT_EQ(Difference(got, RunOne(*cold, conversations.Next(c))), "") << turn << " of " << c;
      conversations.Answered(c, got.tokens);
    }
  }
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.kv_cache_usage, 0);
  EXPECT_GT(counters.host_cache->pages_dropped, 0);
  EXPECT_GT(counters.host_cache->pages_restored, 0);
  EXPECT_LE(counters.host_cache->pages_held, 25);
}

/// A file whose bytes go bad, or whose disk is full, from some call on.
class SpoiltStore : public MemoryPageStore {
 public:
  SpoiltStore(int32_t places, int64_t page_bytes, int good_writes, int good_reads)
      : MemoryPageStore(places, page_bytes), good_writes_(good_writes), good_reads_(good_reads) {}
  void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) override {
    if (good_writes_-- <= 0) throw PageStoreError("the disk is full");
    MemoryPageStore::Write(place, fill);
  }
  void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) override {
    if (good_reads_-- <= 0) throw PageStoreError("other bytes");
    MemoryPageStore::Read(place, take);
  }

 private:
  int good_writes_;
  int good_reads_;
};

TEST(ReturningConversations, GoOnWithoutATierThatFails) {
  constexpr int kMany = 1 << 20;
  // The first page that comes back is bad, or one in the middle of a conversation; or a write.
  for (const auto& [writes, reads] :
       std::vector<std::pair<int, int>>{{kMany, 0}, {kMany, 10}, {20, kMany}}) {
    TestEngineOptions options{.k = 3, .block_size = 8};
    LeaveRoomForOne(options, 250);
    TestEngineOptions bare = options;
    bare.prefix_caching = false;
    const auto cold = MakeTestEngine(bare);
    options.make_page_store = [&](int64_t page_bytes) {
      return std::make_unique<SpoiltStore>(1000, page_bytes, writes, reads);
    };
    const auto engine = MakeTestEngine(options);
    Conversations conversations(150);
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int c = 0; c < kConversations; ++c) {
        const Generated a = RunOne(*engine, conversations.Next(c));
        EXPECT_EQ(Difference(a, RunOne(*cold, conversations.Next(c))), "") << turn << " of " << c;
        conversations.Answered(c, a.tokens);
      }
    }
    const EngineCounters counters = engine->Counters();
    EXPECT_TRUE(counters.host_cache->failed);
    EXPECT_EQ(counters.host_cache->pages_held, 0);
    EXPECT_EQ(counters.kv_cache_usage, 0);
    // Nothing came back of an admission that had to be made again.
    EXPECT_EQ(counters.host_cache_hits, 0);
  }
}

/// A device that is lost while a page is copied.
class LostRunner : public StepRunner {
 public:
  using StepRunner::StepRunner;
  void ReadPage(int32_t, std::span<std::byte>) override {
    throw Error(ErrorCode::kUnavailable, "the device is lost");
  }
};

// A device that fails is no store that fails: requests end, they do not go on with other bytes.
TEST(ReturningConversations, EndWithTheDevice) {
  for (const bool queued : {false, true}) {
    TestEngineOptions options{.k = 3, .block_size = 8, .queued = queued};
    LeaveRoomForOne(options, 250);
    options.host_pages = 1000;
    options.make_executor = [](std::vector<RankParts> ranks) {
      return std::make_unique<LostRunner>(std::move(ranks));
    };
    const auto engine = MakeTestEngine(options);
    const Conversations conversations(150);
    RunOne(*engine, conversations.Next(0));
    Generated last;
    Submit(*engine, conversations.Next(1), &last);
    EXPECT_THROW(RunUntilIdle(*engine), Error);
    EXPECT_EQ(last.finish_reason, FinishReason::kError);
    EXPECT_TRUE(engine->Counters().failed);
    EXPECT_FALSE(engine->Counters().host_cache->failed);
  }
}

TEST(ReturningConversations, AreComputedAgainOnceThePrefixesAreForgotten) {
  TestEngineOptions options{.k = 3, .block_size = 8};
  LeaveRoomForOne(options, 250);
  options.host_pages = 1000;
  const auto engine = MakeTestEngine(options);
  const Conversations conversations(150);
  for (int c = 0; c < kConversations; ++c) RunOne(*engine, conversations.Next(c));
  EXPECT_GT(engine->Counters().host_cache->pages_held, 0);
  EXPECT_GT(RunOne(*engine, conversations.Next(0)).stats.cached_tokens, 100);
  engine->ForgetPrefixes([] {});
  engine->Step();
  EXPECT_EQ(engine->Counters().host_cache->pages_held, 0);
  for (int c = 0; c < kConversations; ++c) {
    EXPECT_EQ(RunOne(*engine, conversations.Next(c)).stats.cached_tokens, 0);
  }
}

}  // namespace
}  // namespace outrider
