// Whatever was rejected, cut into chunks, preempted, found in the prefix cache, brought back from
// the host or freed behind a window: every cache entry that can still be read, of the target and of
// the drafter's modules, is the one that a computation from scratch makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/entry_checking_executor.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/networks/small_v4_model.h"
#include "tests/ops/token_keeping_ops.h"

namespace outrider {
namespace {

constexpr int32_t kEntriesVocab = 40;

struct EntriesCase {
  const char* name;
  DrafterKind drafter = DrafterKind::kChain;
  int32_t k = 3;
  DraftForm form = DraftForm::kCompacted;
  int32_t window = 20;
  bool synthetic = false;  // drafts are accepted at given rates, else by chance
  bool late = false;
  bool keeps = false;  // tokens stay on the device: passes begin before the host has read them
  bool v4 = false;     // DeepSeek-V4, whose window is the model's
  bool rounded_cache = false;
  std::vector<DraftRange> draft_ranges = {};
  /// Over latent attention, without windows; kEagle3: of version 3.1.
  bool latent = false;
  KvCacheForm form_of_latent = KvCacheForm::kLatent;
  bool version31 = false;
  bool grouped = false;  // kEagle3: with Llama's attention
  bool sparse = false;   // DeepSeek-V3.2
};

void PrintTo(const EntriesCase& test, std::ostream* out) { *out << test.name; }

class DrafterEntriesTest : public testing::TestWithParam<EntriesCase> {};

/// Prompts of 1 to 90 tokens, many with a common beginning before them: of 20 to 100 tokens or,
/// where requests resume after more than 20 only, of up to twice so many.
std::vector<GenerationRequest> EntryRequests(uint32_t seed, int count, int resume) {
  std::mt19937 random(seed);
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest request;
    const int first = i < 4 && resume > 20 ? 2 * resume : 0;
    for (int n = first + (i % 5 == 0 ? uniform(1, 4) : uniform(5, 90)); n > 0; --n) {
      request.prompt_token_ids.push_back(uniform(6, kEntriesVocab - 1));
    }
    if (i >= 4 && i % 4 != 0) {
      const auto& other = requests[static_cast<size_t>(uniform(0, i - 1))].prompt_token_ids;
      // Many go on differently within a few tokens after a place where requests resume.
      const int length = resume > 20 ? resume * uniform(1, 2) : 20 * uniform(1, 5);
      const auto shared = std::min<std::ptrdiff_t>(std::ssize(other), length + uniform(0, 4));
      request.prompt_token_ids.insert(request.prompt_token_ids.begin(), other.begin(),
                                      other.begin() + shared);
    }
    request.sampling.temperature = uniform(0, 1) == 0 ? 0.0F : 0.8F;
    request.sampling.seed = static_cast<uint64_t>(uniform(0, 1000));
    request.sampling.max_tokens = uniform(1, 60);
    request.sampling.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_P(DrafterEntriesTest, EqualThoseFromScratch) {
  const EntriesCase& test = GetParam();
  const SmallStepModel step_model(kEntriesVocab, test.window);
  const bool blocks = test.drafter == DrafterKind::kBlock;
  const SmallV4Model v4_model(kEntriesVocab, /*dspark=*/blocks);
  const SmallModel latent_model(2, kEntriesVocab);
  const SmallSparseModel sparse_model(kEntriesVocab);
  const std::filesystem::path& model = test.v4       ? v4_model.directory()
                                       : test.sparse ? sparse_model.directory()
                                       : test.latent ? latent_model.directory()
                                                     : step_model.directory();
  const SmallEagle3 latent_eagle3(model, test.version31);
  const SmallLlamaEagle3 grouped_eagle3(model);
  EntryCounts counts;
  int64_t preemptions = 0;
  int64_t returned = 0;
  const TokenKeepingOps keeping_ops(cpu::GetCpuOps(SelectIsa()).kernels());
  const bool fewer_of_latent = test.latent && !test.draft_ranges.empty();
  for (uint32_t seed = 0; seed < 4; ++seed) {
    TestEngineOptions options;
    if (test.keeps) options.ops = &keeping_ops;
    options.checkpoint = model;
    options.drafter_checkpoint =
        test.grouped ? grouped_eagle3.directory() : latent_eagle3.directory();
    options.dummy_seed = 3 + seed;
    options.rounded_cache = test.rounded_cache;
    options.cache_form = test.latent ? test.form_of_latent : KvCacheForm::kHeads;
    options.drafter = test.drafter;
    options.k = test.k;
    options.draft_form = test.form;
    options.draft_ranges = test.draft_ranges;
    // Entries of modules in a chain are compared with those of the likeliest drafts.
    options.probabilistic_drafts = blocks && seed % 2 == 1;
    options.block_size = 4;
    options.max_num_batched_tokens = 24 + static_cast<int32_t>(seed) * 40;
    options.max_num_seqs = 6;
    const int32_t resume = TestCacheConfig(options).TokensPerResume();
    options.max_model_len = 240 + (resume > 20 ? 2 * resume : 0);
    // Little more than one request may need: some are preempted. Modules lag behind where five run.
    const int32_t step_rows = options.max_num_batched_tokens + 64 + 6 * 4 + (blocks ? 5 : 3);
    options.num_blocks =
        static_cast<int32_t>(TestCacheConfig(options).MostPages(options.max_model_len, step_rows)) +
        (fewer_of_latent ? 24
         : test.k == 1   ? -8
                         : 4);
    if (test.synthetic) {
      options.acceptance.method = RejectionMethod::kSynthetic;
      options.acceptance.rates = RatesOfLength(2.2, test.k);
    }
    if (test.late) options.late_seed = seed;
    if (seed == 3) options.host_pages = 1000;
    using enum EntryCheckingExecutor::Strategy;
    const auto strategy = blocks                                ? kBlock
                          : test.drafter == DrafterKind::kChain ? kChain
                                                                : kRepeated;
    options.make_executor = [&](std::vector<RankParts> ranks) {
      return std::make_unique<EntryCheckingExecutor>(
          std::move(ranks.front()),
          EntryCheckingExecutor::Options{
              .make_draft_model =
                  [&](Network& network) { return MakeTestDraftModel(options, network); },
              .cache = TestCacheNeeds(options, ReadModelConfig(options.checkpoint)),
              .strategy = strategy,
              .k = test.k},
          &counts);
    };
    const auto engine = MakeTestEngine(options);
    const std::vector<GenerationRequest> requests = EntryRequests(seed, 30, resume);
    std::vector<Generated> out(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      Submit(*engine, requests[i], &out[i]);
      for (int step = 0; step < 3; ++step) engine->Step();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    }
    RunUntilIdle(*engine);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(static_cast<int32_t>(out[i].tokens.size()), requests[i].sampling.max_tokens);
    }
    preemptions += engine->Counters().num_preemptions;
    returned += engine->Counters().host_cache_hits;
  }
  EXPECT_EQ(keeping_ops.num_later() > 100, test.keeps);
  EXPECT_GT(counts.target, 10000);
  EXPECT_GT(counts.modules, 5000);
  if (!test.latent && !test.sparse) {
    EXPECT_GT(counts.freed, 5000);
  }
  EXPECT_GT(counts.shared, 100);
  EXPECT_GT(counts.accepted, 20);
  EXPECT_GT(counts.rejected, 100);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(returned, 20);
  if (fewer_of_latent) {
    EXPECT_GT(counts.lagging, 50);
  } else {
    EXPECT_LE(counts.lagging, 50);
  }
  if (test.drafter == DrafterKind::kChain && test.k > 1) {
    EXPECT_GT(counts.provisional, 500);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, DrafterEntriesTest,
    testing::Values(
        EntriesCase{.name = "Chain3"}, EntriesCase{.name = "Chain3Synthetic", .synthetic = true},
        EntriesCase{.name = "Chain2", .k = 2, .window = 5, .synthetic = true},
        EntriesCase{.name = "Chain1", .k = 1, .window = 2},
        EntriesCase{.name = "Chain3WindowOfOne", .window = 1, .synthetic = true},
        EntriesCase{
            .name = "Chain3Padded", .form = DraftForm::kPadded, .window = 5, .synthetic = true},
        EntriesCase{.name = "Chain3FewerDrafts",
                    .synthetic = true,
                    .draft_ranges = {{1, 2, 3}, {3, 4, 1}, {5, 6, 0}}},
        EntriesCase{.name = "Chain3Late", .window = 5, .synthetic = true, .late = true},
        EntriesCase{.name = "Repeated3", .drafter = DrafterKind::kRepeated, .synthetic = true},
        EntriesCase{.name = "Repeated3Padded",
                    .drafter = DrafterKind::kRepeated,
                    .form = DraftForm::kPadded,
                    .window = 5,
                    .synthetic = true},
        EntriesCase{.name = "V4Repeated5",
                    .drafter = DrafterKind::kRepeated,
                    .k = 5,
                    .synthetic = true,
                    .v4 = true},
        EntriesCase{.name = "V4Repeated3PaddedLate",
                    .drafter = DrafterKind::kRepeated,
                    .form = DraftForm::kPadded,
                    .synthetic = true,
                    .late = true,
                    .v4 = true},
        EntriesCase{.name = "V4DSpark5",
                    .drafter = DrafterKind::kBlock,
                    .k = 5,
                    .synthetic = true,
                    .v4 = true},
        EntriesCase{.name = "V4DSpark3PaddedFewerDrafts",
                    .drafter = DrafterKind::kBlock,
                    .form = DraftForm::kPadded,
                    .v4 = true,
                    .draft_ranges = {{1, 2, 3}, {3, 4, 1}, {5, 6, 0}}},
        EntriesCase{.name = "V4DSpark4LateRounded",
                    .drafter = DrafterKind::kBlock,
                    .k = 4,
                    .synthetic = true,
                    .late = true,
                    .v4 = true,
                    .rounded_cache = true},
        EntriesCase{.name = "V4DSpark5Launched",
                    .drafter = DrafterKind::kBlock,
                    .k = 5,
                    .synthetic = true,
                    .keeps = true,
                    .v4 = true},
        EntriesCase{.name = "V4DSpark3FewerDraftsLaunchedLate",
                    .drafter = DrafterKind::kBlock,
                    .synthetic = true,
                    .late = true,
                    .keeps = true,
                    .v4 = true,
                    .draft_ranges = {{1, 2, 3}, {3, 4, 1}, {5, 6, 0}}},
        EntriesCase{
            .name = "Eagle3", .drafter = DrafterKind::kEagle3, .synthetic = true, .latent = true},
        EntriesCase{.name = "Eagle3PaddedHeads",
                    .drafter = DrafterKind::kEagle3,
                    .form = DraftForm::kPadded,
                    .synthetic = true,
                    .latent = true,
                    .form_of_latent = KvCacheForm::kHeads,
                    .version31 = true},
        EntriesCase{.name = "Eagle31FewerDraftsLate",
                    .drafter = DrafterKind::kEagle3,
                    .k = 4,
                    .synthetic = true,
                    .late = true,
                    .draft_ranges = {{1, 2, 4}, {3, 4, 1}, {5, 6, 0}},
                    .latent = true,
                    .version31 = true},
        EntriesCase{.name = "LlamaEagle3",
                    .drafter = DrafterKind::kEagle3,
                    .k = 4,
                    .latent = true,
                    .grouped = true},
        EntriesCase{.name = "LlamaEagle3PaddedFewerDraftsLate",
                    .drafter = DrafterKind::kEagle3,
                    .form = DraftForm::kPadded,
                    .synthetic = true,
                    .late = true,
                    .draft_ranges = {{1, 2, 3}, {3, 4, 1}, {5, 6, 0}},
                    .latent = true,
                    .grouped = true},
        EntriesCase{.name = "LlamaEagle3BesideWindows",
                    .drafter = DrafterKind::kEagle3,
                    .window = 5,
                    .synthetic = true,
                    .grouped = true},
        EntriesCase{.name = "SparseRepeated3",
                    .drafter = DrafterKind::kRepeated,
                    .synthetic = true,
                    .sparse = true},
        EntriesCase{.name = "SparseRepeated4PaddedLate",
                    .drafter = DrafterKind::kRepeated,
                    .k = 4,
                    .form = DraftForm::kPadded,
                    .synthetic = true,
                    .late = true,
                    .sparse = true},
        EntriesCase{.name = "Eagle3BesideWindows",
                    .drafter = DrafterKind::kEagle3,
                    .window = 5,
                    .synthetic = true}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider
