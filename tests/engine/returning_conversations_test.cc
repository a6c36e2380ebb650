// Conversations whose pages left the device's pool and come back from the host (HostCache): what is
// copied is as good as computed, bit for bit, drafters' entries and what they keep included.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/engine/random_requests.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

constexpr int kConversations = 4;
constexpr int kTurns = 3;

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

Generated AskOne(Engine& engine, const GenerationRequest& request) {
  Generated out;
  Submit(engine, request, &out);
  RunUntilIdle(engine);
  return out;
}

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
      const Generated a = AskOne(*engine, request);
      const Generated b = AskOne(*cold, request);
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
    LeaveRoomForOne(options, 400);
    return options;
  }
  static int32_t FirstPrompt() { return GetParam().drafter == DrafterKind::kBlock ? 280 : 150; }
};

TEST_P(ReturningConversationsTest, HaveTheBitsOfConversationsThatAreComputed) {
  // The beginnings of all conversations come back, at least.
  EXPECT_GT(ExpectSameWithTier(Options(), FirstPrompt()), 1000);
}

TEST_P(ReturningConversationsTest, FromAFile) {
  const TemporaryDirectory directory;
  TestEngineOptions options = Options();
  options.host_directory = directory.path();
  EXPECT_GT(ExpectSameWithTier(options, FirstPrompt()), 1000);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST_P(ReturningConversationsTest, WithStepsInFlight) {
  for (const bool queued : {false, true}) {
    TestEngineOptions options = Options();
    options.queued = queued;
    if (!queued) options.late_seed = 3;
    EXPECT_GT(ExpectSameWithTier(options, FirstPrompt()), 1000);
  }
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

}  // namespace
}  // namespace outrider
