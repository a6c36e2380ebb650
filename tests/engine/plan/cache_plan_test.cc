// Pages and lengths, from plans and memory: no machine and no weights.
#include "outrider/engine/plan/cache_plan.h"

#include <gtest/gtest.h>

#include "outrider/engine/plan/memory_report.h"
#include "tests/engine/plan/made_up_facts.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

struct Planned {
  EnginePlan plan;
  SchedulerConfig scheduler;
  Decisions decisions;
};

Planned PlanOf(const EngineOptions& options, const CacheMemory& memory,
               const ModelFacts& model = TinyV3(), const DeviceFacts& device = Processor()) {
  Planned planned;
  planned.plan = PlanEngine(options, model, device, planned.decisions);
  planned.decisions.clear();
  planned.scheduler = PlanCache(options, model.config, planned.plan, memory, planned.decisions);
  return planned;
}

std::string RefusalOf(const EngineOptions& options, int64_t bytes) {
  return RefusalBy([&] { PlanOf(options, {bytes, "a test"}); });
}

TEST(CachePlan, PagesFillTheMemory) {
  const Planned planned = PlanOf({}, {100 * kMiB, "a test"});
  const CacheConfig& cache = planned.scheduler.cache;
  // A page is 64 tokens of 8 layers of 1088 numbers, and the hidden rows that modules may need.
  EXPECT_EQ(cache.PageBytes(), 64 * 8 * 1088 * 2);
  EXPECT_EQ(planned.plan.cache.kept_bytes_per_page, 64 * 256 * 4);
  EXPECT_EQ(cache.num_pages,
            100 * kMiB / (cache.PageBytes() + planned.plan.cache.kept_bytes_per_page));
  EXPECT_EQ(planned.scheduler.max_model_len, 4096);
  EXPECT_THAT(DecisionOn("KV cache", planned.decisions), HasSubstr("(a test)"));
  EXPECT_EQ(DecisionOn("context", planned.decisions), "4096 tokens (max_position_embeddings)");
}

TEST(CachePlan, TheSchedulerKnowsTheDrafter) {
  const SchedulerConfig chain = PlanOf({.max_num_seqs = 7}, {kGiB, ""}).scheduler;
  EXPECT_EQ(chain.max_num_seqs, 7);
  EXPECT_EQ(chain.max_num_batched_tokens, 512);
  EXPECT_EQ(chain.max_drafts, 3);
  EXPECT_EQ(chain.lookahead_tokens, 0);
  EXPECT_EQ(chain.tokens_ahead, 3);
  EXPECT_EQ(chain.cache.rerun_tokens, 2);
  const SchedulerConfig repeated = PlanOf({}, {kGiB, ""}, TinyV3(1)).scheduler;
  EXPECT_EQ(repeated.lookahead_tokens, 2);
  EXPECT_EQ(repeated.tokens_ahead, 1);
  EXPECT_EQ(repeated.cache.rerun_tokens, 0);
}

TEST(CachePlan, NoMorePagesThanRequestsCanUse) {
  const Planned planned = PlanOf({.max_model_len = 128, .max_num_seqs = 2}, {100 * kGiB, ""});
  EXPECT_LT(planned.scheduler.cache.num_pages, 32);
  EXPECT_EQ(planned.scheduler.max_model_len, 128);
  EXPECT_THAT(DecisionOn("KV cache", planned.decisions),
              HasSubstr("as much as --max-num-seqs requests can use"));
  EXPECT_EQ(DecisionOn("context", planned.decisions), "128 tokens (--max-model-len)");
}

TEST(CachePlan, LengthShrinksToWhatTheCacheHoldsUnlessItIsAskedFor) {
  const Planned planned = PlanOf({}, {20 * kMiB, ""});
  EXPECT_LT(planned.scheduler.max_model_len, 4096);
  EXPECT_GT(planned.scheduler.max_model_len, 64);
  EXPECT_THAT(DecisionOn("context", planned.decisions), HasSubstr("shrunk"));
  EXPECT_THAT(RefusalOf({.max_model_len = 4096}, 20 * kMiB),
              HasSubstr("a KV cache of 20.0 MiB (a test) holds"));
  EXPECT_THAT(RefusalOf({.max_model_len = 4096}, 20 * kMiB), HasSubstr("or lower --max-model-len"));
  EXPECT_THAT(RefusalOf({}, -5), HasSubstr("a KV cache of 0 B (a test) holds 0 tokens"));
  EXPECT_THAT(RefusalOf({.max_model_len = 4097}, kGiB), HasSubstr("made for 4096 positions"));
  EXPECT_THAT(RefusalOf({.max_model_len = 1}, kGiB), HasSubstr("it must be at least 2"));
}

TEST(CachePlan, AnswersAreSharedWhereAllRowsTakeOnePath) {
  const auto publishes = [](const EngineOptions& options) {
    return PlanOf(options, {kGiB, ""}).scheduler.publish_answers;
  };
  EXPECT_TRUE(publishes({.kv_cache_form = KvCacheForm::kHeads}));
  EXPECT_FALSE(publishes({.kv_cache_form = KvCacheForm::kLatent}));
  EXPECT_TRUE(publishes({.kv_cache_form = KvCacheForm::kLatent, .fast_prefix = true}));
  const auto why = [](const EngineOptions& options) {
    return DecisionOn("prefix caching", PlanOf(options, {kGiB, ""}).decisions);
  };
  EXPECT_THAT(why({.enable_prefix_caching = false}), HasSubstr("off"));
  EXPECT_THAT(why({.kv_cache_form = KvCacheForm::kLatent}), HasSubstr("prompts (answers take"));
  EXPECT_THAT(why({.kv_cache_form = KvCacheForm::kLatent, .fast_prefix = true}),
              HasSubstr("NOT exact"));
}

TEST(CachePlan, ModulesThatNeverLagKeepNoRows) {
  const auto layout = [](const EngineOptions& options, const ModelFacts& model) {
    Decisions decisions;
    return PlanEngine(options, model, Processor(), decisions).cache;
  };
  EngineOptions options;
  EXPECT_EQ(layout(options, TinyV3()).kept_rows, KeptRows::kAll);
  options.speculation.num_speculative_tokens = 3;
  EXPECT_EQ(layout(options, TinyV3()).kept_rows, KeptRows::kLast);
  EXPECT_EQ(layout(options, TinyV3()).kept_bytes_per_page, 0);
  // Nor modules with windows, whose entries cannot be made up for.
  EXPECT_EQ(layout({}, TinyDSpark()).kept_rows, KeptRows::kLast);
}

TEST(CachePlan, RanksKeepTheirHeads) {
  const auto page_bytes = [](int32_t ranks) {
    return PlanOf({.kv_cache_form = KvCacheForm::kHeads, .tensor_parallel_size = ranks}, {kGiB, ""})
        .scheduler.cache.PageBytes();
  };
  // The rotated key, 64 numbers, is on every rank; the rest is cut.
  EXPECT_EQ(page_bytes(1), 64 * 8 * (1024 + 64) * 2);
  EXPECT_EQ(page_bytes(2), 64 * 8 * (512 + 64) * 2);
}

TEST(CacheMemory, IsWhatIsAskedForOrADefault) {
  EXPECT_EQ(MemoryOfCache({}, std::nullopt, 5).bytes, kGiB);
  const EngineOptions asked = {.kv_cache_memory_bytes = 77};
  EXPECT_EQ(MemoryOfCache(asked, std::nullopt, 5).bytes, 77);
  EXPECT_EQ(MemoryOfCache(asked, std::nullopt, 5).why, "--kv-cache-memory-bytes");
  EXPECT_FALSE(FillsGpu(asked, DeviceKind::kCuda));
  EXPECT_TRUE(FillsGpu({}, DeviceKind::kCuda));
  EXPECT_FALSE(FillsGpu({}, DeviceKind::kCpu));
}

TEST(CacheMemory, IsWhatIsLeftOfAGpu) {
  const EngineOptions options = {.gpu_memory_utilization = 0.5};
  const DeviceMemoryState before = {.total = 100 * kGiB, .free = 98 * kGiB};
  const GpuBudget estimate = EstimateGpu(options, before, 10 * kGiB);
  EXPECT_EQ(estimate.usable, 50 * kGiB);
  EXPECT_EQ(estimate.work_space, 6 * kGiB);  // 2 of others, 4 as a guess
  EXPECT_FALSE(estimate.measured);
  EXPECT_EQ(MemoryOfCache(options, estimate, 10 * kGiB).bytes, 34 * kGiB);
  EXPECT_THAT(MemoryOfCache(options, estimate, 10 * kGiB).why, HasSubstr("by estimate"));
  const DeviceMemoryState loaded = {.total = 100 * kGiB, .free = 87 * kGiB};
  const GpuBudget measured = MeasureGpu(options, loaded, 10 * kGiB);
  EXPECT_EQ(measured.work_space, 3 * kGiB);
  EXPECT_TRUE(measured.measured);
  EXPECT_EQ(MemoryOfCache(options, measured, 10 * kGiB).bytes, 37 * kGiB);
  EXPECT_EQ(RefusalBy([&] { EstimateGpu(options, before, 44 * kGiB); }),
            "the weights take 44.0 GiB, the work space and other processes about 6.0 GiB, but "
            "--gpu-memory-utilization 0.5 allows 50.0 GiB of the GPU's 100.0 GiB: raise it, or "
            "free memory there");
  EXPECT_EQ(RefusalBy([&] { EstimateGpu(options, before, 44 * kGiB - 1); }), "");
}

TEST(MemoryReport, AddsUpWhatPlansAndWeightsSay) {
  const Planned planned = PlanOf({}, {100 * kMiB, "a test"});
  const MeasuredWeights weights = {.model = {.target = {{DType::kBF16, 10}, {DType::kF32, 5}},
                                             .modules = {{DType::kF32, 3}},
                                             .groups = {}},
                                   .drafter = {},
                                   .ranks = {18}};
  const MemoryReport report = ReportMemory(planned.plan, planned.scheduler, weights, std::nullopt);
  EXPECT_EQ(SumOf(report.weights), 15);
  EXPECT_EQ(SumOf(report.mtp_weights), 3);
  EXPECT_EQ(report.kv_pages, planned.scheduler.cache.num_pages);
  EXPECT_EQ(report.kv_cache_bytes, report.kv_pages * planned.scheduler.cache.PageBytes());
  EXPECT_EQ(report.kept_row_bytes, report.kv_pages * planned.plan.cache.kept_bytes_per_page);
  EXPECT_EQ(report.kv_tokens, report.kv_pages * 64);
  EXPECT_LE(report.kv_cache_bytes + report.kept_row_bytes, 100 * kMiB);
  ASSERT_EQ(report.kv_groups.size(), 1U);
  EXPECT_EQ(report.kv_groups.front().pages_per_request, 4096 / 64);
  EXPECT_THAT(report.kv_groups.front().parts, IsEmpty());
  EXPECT_THAT(report.ranks, IsEmpty());
  EXPECT_FALSE(report.state);
  EXPECT_FALSE(report.gpu);
}

TEST(MemoryReport, TellsRanksAndPartsOfGroups) {
  const Planned ranks = PlanOf({.tensor_parallel_size = 2}, {100 * kMiB, "a test"});
  const MeasuredWeights weights = {.model = {}, .drafter = {}, .ranks = {18, 17}};
  EXPECT_EQ(weights.all_ranks(), 35);
  EXPECT_EQ(weights.largest_rank(), 18);
  EXPECT_EQ((MeasuredWeights{.model = {}, .drafter = {}, .ranks = {17, 19, 18}}).largest_rank(),
            19);
  const MemoryReport two = ReportMemory(ranks.plan, ranks.scheduler, weights, std::nullopt);
  ASSERT_EQ(two.ranks.size(), 2U);
  EXPECT_EQ(two.ranks[1].weights, 17);
  EXPECT_EQ(two.ranks[1].cache, two.kv_cache_bytes + two.kept_row_bytes);
  const Planned v4 = PlanOf({}, {kGiB, ""}, TinyDSpark());
  const MemoryReport parts =
      ReportMemory(v4.plan, v4.scheduler, {.model = {}, .drafter = {}, .ranks = {1}}, std::nullopt);
  int32_t layers = 0;
  for (const CacheGroupReport& group : parts.kv_groups) {
    EXPECT_FALSE(group.parts.empty()) << group.group.name;
    for (const CachePartReport& part : group.parts) layers += part.layers;
  }
  EXPECT_EQ(layers, std::ssize(v4.plan.cache.layers));
}

// Windows and states, whatever the family: what is told is what positions of a request need.
TEST(MemoryReport, TellsWhatARequestHoldsWhileItGenerates) {
  const ModelFacts hybrid = {
      .config = ParseModelConfig(SmallLingConfig(512).dump(), std::nullopt, "config.json")};
  for (const ModelFacts& model : {TinyDSpark(), GoldenModel("tiny-step3p5"), hybrid, TinyV3()}) {
    SCOPED_TRACE(model.config.model_type);
    const Planned planned = PlanOf({.max_num_batched_tokens = 128}, {kGiB, ""}, model);
    const CacheConfig& cache = planned.scheduler.cache;
    const int32_t length = planned.scheduler.max_model_len;
    const int32_t rows = planned.plan.MostDecodeTokens();
    int64_t history = 0;
    int64_t windows = 0;
    int64_t bytes_per_token = 0;
    for (const CacheGroupSpec& group : cache.groups) {
      int64_t most = 0;
      for (int32_t position = 0; position + rows <= length; ++position) {
        const int32_t first = std::max(position - cache.rerun_tokens, 0);
        most = std::max<int64_t>(
            most, group.BlocksBefore(position + rows) - group.BlocksUnreadFrom(first));
      }
      EXPECT_EQ(PagesWhileGenerating(planned.plan, group, length), most) << group.name;
      const bool window = group.kind == CacheGroupKind::kSlidingWindow;
      (window ? windows : history) += most;
      if (!window) bytes_per_token += group.bytes_per_block() / group.tokens_per_block;
    }
    const int64_t states = cache.StatePages() + cache.StateRowPages();
    const MemoryReport report = ReportMemory(
        planned.plan, planned.scheduler, {.model = {}, .drafter = {}, .ranks = {1}}, std::nullopt);
    EXPECT_EQ(report.kv_bytes_per_token, bytes_per_token);
    EXPECT_EQ(report.request.history, history);
    EXPECT_EQ(report.request.generating, windows + states);
    EXPECT_EQ(report.request.history + report.request.prompt,
              cache.MostPages(length, planned.plan.MostStepTokens()));
    const std::string told = DecisionOn("windows and states", planned.decisions);
    if (windows + states == 0) {
      EXPECT_EQ(told, "");
    } else {
      EXPECT_GT(report.request.prompt, report.request.generating);
      EXPECT_THAT(
          told, HasSubstr(fmt::format("in {} pages while a request generates", windows + states)));
    }
    EXPECT_THAT(DecisionOn("KV cache", planned.decisions),
                HasSubstr(fmt::format("{} bytes per token of history", bytes_per_token)));
  }
}

}  // namespace
}  // namespace outrider
