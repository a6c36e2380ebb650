// What serve prints: load progress, memory, statistics; and what explain prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/explain_report.h"
#include "outrider/cli/load_progress.h"
#include "outrider/cli/memory_table.h"
#include "outrider/cli/parameter_count.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/telemetry/stats_log.h"
#include "tests/source_directory.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

TEST(LoadProgress, ALogGetsALineAtEveryQuarter) {
  std::vector<std::string> lines;
  LoadProgressPrinter printer([&](const std::string& line) { lines.push_back(line); },
                              ProgressStyle::kLines);
  for (int64_t done = 0; done <= 1000; done += 10) printer.Update(done, 1000);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[2], "Loading safetensors checkpoint shards: 50% | 500 B of 1000 B");
  EXPECT_THAT(lines[4], HasSubstr("100% | 1000 B of 1000 B in "));
}

TEST(LoadProgress, ATerminalGetsOneLineRewritten) {
  std::string text;
  LoadProgressPrinter printer([&](const std::string& piece) { text += piece; },
                              ProgressStyle::kRewrite);
  for (const int64_t done : {0, 1, 2, 500, 1000, 1000}) printer.Update(done, 1000);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 3) << "0%, 50% and 100%";
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
}

TEST(LoadProgress, SilentWhenAskedOrEmpty) {
  std::string text;
  const auto print = [&](const std::string& piece) { text += piece; };
  LoadProgressPrinter(print, ProgressStyle::kNone).Update(1, 1);
  LoadProgressPrinter(print, ProgressStyle::kLines).Update(0, 0);
  EXPECT_THAT(text, IsEmpty());
}

TEST(MemoryTable, Lines) {
  MemoryReport memory;
  memory.weights = {{DType::kBF16, 20 << 20}, {DType::kF8E4M3, 70 << 20}};
  memory.mtp_weights = {{DType::kI8, 10 << 20}};
  memory.kv_cache_bytes = 1 << 30;
  memory.kv_bytes_per_token = 2048;
  memory.kv_tokens = 8192;
  EXPECT_THAT(MemoryLines(memory, 4096),
              ElementsAre(AllOf(HasSubstr("weights"),
                                HasSubstr("90.0 MiB  70.0 MiB float8_e4m3, 20.0 MiB bfloat16")),
                          AllOf(HasSubstr("MTP modules"), HasSubstr("10.0 MiB  10.0 MiB int8")),
                          AllOf(HasSubstr("KV cache"), HasSubstr("1.0 GiB"),
                                HasSubstr("8192 tokens, 2.0 KiB each, 2.0 requests of 4096")),
                          AllOf(HasSubstr("in all"), HasSubstr("1.1 GiB"))));
}

TEST(MemoryTable, CacheGroupsAreLinesWhereThereAreSeveral) {
  MemoryReport memory;
  memory.kv_pages = 120;
  memory.kv_page_bytes = 1 << 20;
  memory.kv_cache_bytes = 120 << 20;
  CacheGroupReport full;
  full.group = {.name = "full history", .tokens_per_block = 192, .layers = 12};
  full.bytes_per_token = 4096;
  full.pages_per_request = full.pages_generating = 20;
  memory.kv_bytes_per_token = 4096;
  memory.kv_groups = {full};
  EXPECT_THAT(MemoryLines(memory, 0), testing::SizeIs(4));
  CacheGroupReport window = full;
  window.group = {.name = "last 512",
                  .kind = CacheGroupKind::kSlidingWindow,
                  .tokens_per_block = 64,
                  .window = 512,
                  .layers = 36};
  window.pages_per_request = 30;
  window.pages_generating = 10;
  memory.kv_groups = {full, window};
  memory.request = {.history = 20, .generating = 10, .prompt = 30};
  const std::vector<std::string> lines = MemoryLines(memory, 4096);
  ASSERT_EQ(lines.size(), 7U);
  // One of them is in a step of its prompt, which takes 20 pages more.
  EXPECT_THAT(lines[2], HasSubstr("120 pages of 1.0 MiB, 4.0 KiB per token of history, 3.3 "
                                  "requests of 4096 tokens"));
  EXPECT_EQ(lines[3],
            "  full history: 12 layers, 4.0 KiB per token, 192 tokens a page, at most 20 pages for "
            "a request");
  EXPECT_EQ(lines[4],
            "  last 512: 36 layers, 4.0 KiB per token, 64 tokens a page, 10 pages while a request "
            "generates, at most 30 during its prompt");
  EXPECT_EQ(lines[5],
            "  beside the history: 10.0 MiB in 10 pages while a request generates, at most 30.0 "
            "MiB in 30 during its prompt");
}

TEST(MemoryTable, EveryRankHasALineWhereThereAreSeveral) {
  MemoryReport memory;
  memory.weights = {{DType::kBF16, 5 << 20}};
  memory.kv_cache_bytes = 3 << 20;
  memory.ranks = {{.weights = 5 << 20, .cache = 3 << 20}, {.weights = 4 << 20, .cache = 3 << 20}};
  const std::vector<std::string> lines = MemoryLines(memory, 0);
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_THAT(lines[3], AllOf(HasSubstr("rank 0"), HasSubstr("8.0 MiB  weights 5.0 MiB, cache 3.0 "
                                                             "MiB: the lines above are its")));
  EXPECT_THAT(lines[4], AllOf(HasSubstr("rank 1"), HasSubstr("7.0 MiB  weights 4.0 MiB")));
  EXPECT_THAT(lines[5], AllOf(HasSubstr("all ranks"), HasSubstr("15.0 MiB")));
}

// On GPUs too, whose table has lines of its own.
TEST(MemoryTable, EveryRankHasALineOnGpus) {
  MemoryReport memory;
  memory.weights = {{DType::kBF16, 5 << 20}};
  memory.kv_tokens = 1000;
  memory.kv_cache_bytes = 3 << 20;
  memory.gpu = {.total = 100 << 20, .usable = 90 << 20, .work_space = 2 << 20, .measured = true};
  EXPECT_THAT(MemoryLines(memory, 0).back(),
              AllOf(HasSubstr("in all"), HasSubstr("10.0 MiB  of 90.0 MiB that may be used, of "
                                                   "100.0 MiB of the GPU")));
  memory.ranks = {{.weights = 5 << 20, .cache = 3 << 20}, {.weights = 4 << 20, .cache = 3 << 20}};
  memory.cache_ranks = 2;
  const std::vector<std::string> lines = MemoryLines(memory, 500);
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_THAT(lines[3], AllOf(HasSubstr("work space"), HasSubstr("2.0 MiB")));
  EXPECT_THAT(lines[4], HasSubstr("of 90.0 MiB that may be used, of 100.0 MiB of each GPU"));
  EXPECT_THAT(lines[5], AllOf(HasSubstr("rank 0"), HasSubstr("8.0 MiB  weights 5.0 MiB, cache 3.0 "
                                                             "MiB: the lines above are its")));
  EXPECT_THAT(lines[6], AllOf(HasSubstr("rank 1"), HasSubstr("7.0 MiB  weights 4.0 MiB")));
  EXPECT_THAT(lines[7], AllOf(HasSubstr("all ranks"),
                              HasSubstr("caches hold 2000 tokens, 4.0 requests of 500 tokens")));
}

TEST(MemoryTable, SaysWhatCachesOfRanksThatShareRequestsHoldTogether) {
  MemoryReport memory;
  memory.kv_tokens = 1000;
  memory.kv_groups.resize(1);
  memory.ranks.resize(4);
  memory.cache_ranks = 4;
  EXPECT_THAT(MemoryLines(memory, 500).back(),
              HasSubstr("their caches hold 4000 tokens, 8.0 requests of 500 tokens"));
  memory.kv_groups.resize(2);
  memory.request = {.history = 5, .generating = 5, .prompt = 5};
  memory.kv_pages = 20;
  EXPECT_THAT(MemoryLines(memory, 500).back(),
              HasSubstr("their caches hold 80 pages, 8.0 requests of 500 tokens"));
  memory.cache_ranks = 1;
  EXPECT_THAT(MemoryLines(memory, 500).back(), testing::Not(HasSubstr("caches")));
}

// Of linear attention: what a running request takes, and what a checkpoint.
TEST(MemoryTable, RunningStatesAreALine) {
  MemoryReport memory;
  memory.kv_pages = 120;
  memory.kv_page_bytes = 1 << 20;
  memory.kv_cache_bytes = 120 << 20;
  memory.kv_groups.resize(1);
  memory.kv_groups[0].pages_per_request = 10;
  memory.request = {.history = 10, .generating = 5, .prompt = 8};
  const RunningStateSpec spec = {.heads = 32, .head_dim = 128, .conv = 4};
  memory.state = {.spec = spec, .state_pages = 3, .row_pages = 2, .tokens_per_checkpoint = 512};
  const std::vector<std::string> lines = MemoryLines(memory, 4096);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_THAT(lines[2], HasSubstr("120 pages of 1.0 MiB, 0 B per token of history, 7.8 requests"));
  EXPECT_THAT(lines[5], HasSubstr("beside the history: 5.0 MiB in 5 pages while a request"));
  // 32 heads of 128 x 128 numbers and 3 rows of q, k and v; 32 rows of q, k, v and more.
  EXPECT_EQ(spec.StateBytes(), 32 * (128 * 128 + 3 * 3 * 128) * 4);
  EXPECT_EQ(lines[4],
            "  running state: 2.1 MiB in 3 pages and kept rows 3.0 MiB in 2 pages for a request, "
            "2.1 MiB in 3 pages for a checkpoint");
  LoadedEngine explained;
  explained.config = ReadModelConfig(SourceDirectory() / "models/tiny-ling");
  explained.memory = memory;
  const Json report = Json::parse(ExplainJson("models/tiny", explained))["memory"];
  EXPECT_EQ(report["request"], Json::parse(R"({"history_pages": 10, "generating_pages": 5,
      "generating_bytes": 5242880, "prompt_pages": 8, "prompt_bytes": 8388608})"));
  const Json& state = report["running_state"];
  EXPECT_EQ(state["request_bytes"], spec.StateBytes() + spec.RowBytes());
  EXPECT_EQ(state["request_pages"], 5);
  EXPECT_EQ(state["checkpoint_bytes"], spec.StateBytes());
  EXPECT_EQ(state["checkpoint_pages"], 3);
  EXPECT_EQ(state["tokens_per_checkpoint"], 512);
}

TEST(MemoryTable, KeptRowsAreALineWhereThereAreAny) {
  MemoryReport memory;
  memory.kv_cache_bytes = 3 << 20;
  memory.kept_row_bytes = 1 << 20;
  const std::vector<std::string> lines = MemoryLines(memory, 0);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[3], AllOf(HasSubstr("kept rows"), HasSubstr("1.0 MiB")));
  EXPECT_THAT(lines[4], AllOf(HasSubstr("in all"), HasSubstr("4.0 MiB")));
}

EngineCounters WorkingCounters() {
  EngineCounters counters;
  counters.num_requests_running = 2;
  counters.num_requests_waiting = 1;
  counters.kv_cache_usage = 0.125;
  counters.prompt_tokens = 1000;
  counters.generation_tokens = 500;
  counters.prefix_cache_queries = 200;
  counters.prefix_cache_hits = 50;
  counters.speculation.num_drafts = 100;
  counters.speculation.num_draft_tokens = 300;
  counters.speculation.num_accepted_tokens = 240;
  counters.speculation.accepted_per_position = {90, 80, 70};
  return counters;
}

TEST(StatsLog, LinesWithTheKnownWords) {
  EXPECT_THAT(
      StatsLines(EngineCounters(), WorkingCounters(), 10),
      ElementsAre("Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 50.0 "
                  "tokens/s, Running: 2 reqs, Waiting: 1 reqs, KV cache usage: 12.5%, Prefix cache "
                  "hit rate: 25.0%",
                  "SpecDecoding metrics: Mean acceptance length: 3.40, Accepted throughput: 24.0 "
                  "tokens/s, Drafted throughput: 30.0 tokens/s, Accepted: 240 tokens, Drafted: 300 "
                  "tokens, Per-position acceptance rate: 0.900, 0.800, 0.700, Avg Draft acceptance "
                  "rate: 80.0%"));
}

TEST(StatsLog, SilentWhenIdleAndOnlyTheDifferenceCounts) {
  EngineCounters idle = WorkingCounters();
  idle.num_requests_running = 0;
  idle.num_requests_waiting = 0;
  EXPECT_THAT(StatsLines(idle, idle, 10), IsEmpty());
  EXPECT_THAT(StatsLines(EngineCounters(), EngineCounters(), 10), IsEmpty());
  // Requests that wait without progress are worth a line, but there is nothing to say of drafts.
  EXPECT_THAT(StatsLines(WorkingCounters(), WorkingCounters(), 10),
              ElementsAre(HasSubstr("Avg prompt throughput: 0.0 tokens/s")));
}

LoadedEngine BundledModel() {
  LoadedEngine explained;
  explained.config = ReadModelConfig(SourceDirectory() / "models/tiny-v3-mtp3");
  explained.memory.kv_tokens = 1234;
  explained.decisions = {{"drafter", "ChainDrafter, k = 3", "the checkpoint has 3 MTP modules"}};
  return explained;
}

TEST(ParameterCount, EqualsTheTensorsOfTheBundledModel) {
  const ParameterCount count = CountParameters(BundledModel().config);
  EXPECT_EQ(count.target, 10'336'480);  // summed over the tensors' shapes
  EXPECT_EQ(count.mtp, 6'205'272);
  // Six of eight experts, each 3 matrices of 256 x 128, are idle in each of four layers.
  EXPECT_EQ(count.target - count.target_active, int64_t{4} * 6 * 3 * 256 * 128);
}

std::string DecisionOf(const LoadedEngine& explained, const std::string& what) {
  for (const Decision& d : explained.decisions) {
    if (d.what == what) return fmt::format("{} ({})", d.value, d.why);
  }
  return "";
}

TEST(ExplainedCacheForm, FollowsTheShapeTheFlagAndTheBackend) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine by_shape = ExplainEngine(options);
  EXPECT_EQ(by_shape.kv_cache_form, KvCacheForm::kHeads);
  EXPECT_EQ(by_shape.memory.kv_bytes_per_token, 1088 * 2 * 8);  // bfloat16, 5 + 3 layers
  EXPECT_THAT(DecisionOf(by_shape, "KV cache form"),
              AllOf(HasSubstr("heads (saves"), HasSubstr("1152 bytes and 8704 multiply-adds"),
                    HasSubstr("2176 bytes and 1536 multiply-adds")));
  EXPECT_NE(DecisionOf(by_shape, "all tokens"), "");

  options.attention_backend = AttentionBackend::kUniformPad;
  EXPECT_THAT(DecisionOf(ExplainEngine(options), "KV cache form"),
              HasSubstr("latent (--attention-backend uniform-pad needs it"));
  options.kv_cache_form = KvCacheForm::kHeads;
  EXPECT_THROW(ExplainEngine(options), Error);

  options.attention_backend = AttentionBackend::kRagged;
  options.kv_cache_form = KvCacheForm::kLatent;
  const LoadedEngine by_flag = ExplainEngine(options);
  EXPECT_EQ(by_flag.kv_cache_form, KvCacheForm::kLatent);
  EXPECT_EQ(by_flag.memory.kv_bytes_per_token, 576 * 2 * 8);
  EXPECT_NE(DecisionOf(by_flag, "generated tokens"), "");
}

TEST(ExplainedDraftLength, ALineForEachBatchSize) {
  EXPECT_EQ(StepTimesLine({8, {0.002, 0.0026, 0.005}}),
            "step times, 8 requests: 2 ms without drafts, x 1.30 with 1, x 2.50 with 2");
  EXPECT_EQ(StepTimesLine({1, {0.0123, 0.0246}}),
            "step times, 1 request: 12.3 ms without drafts, x 2.00 with 1");
  EXPECT_EQ(StepTimesLine({2, {0.01, 0.011}, 0.0103}),
            "step times, 2 requests: 10 ms without drafts, x 1.10 with 1, x 1.03 with lookups that "
            "find none");
}

TEST(ExplainedDraftLength, MemoryOfKeptRowsIsPartOfTheBudget) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  options.kv_cache_memory_bytes = 64 << 20;
  options.speculation.num_speculative_tokens = 3;
  const LoadedEngine fixed = ExplainEngine(options);
  EXPECT_EQ(fixed.memory.kept_row_bytes, 0);
  EXPECT_THAT(DecisionOf(fixed, "draft length"), HasSubstr("always 3 (num_speculative_tokens)"));

  options.speculation.num_speculative_tokens.reset();
  const LoadedEngine adaptive = ExplainEngine(options);
  EXPECT_THAT(DecisionOf(adaptive, "draft length"), HasSubstr("adaptive, 0 to 3"));
  EXPECT_EQ(adaptive.memory.kept_row_bytes, adaptive.memory.kv_tokens * 256 * 4);
  EXPECT_LT(adaptive.memory.kv_tokens, fixed.memory.kv_tokens);
  EXPECT_LE(adaptive.memory.kv_cache_bytes + adaptive.memory.kept_row_bytes, 64 << 20);

  options.speculation.num_speculative_tokens = 0;  // turns speculation off
  EXPECT_EQ(ExplainEngine(options).memory.kept_row_bytes, 0);
  options.speculation.num_speculative_tokens.reset();
  options.speculation.num_speculative_tokens_per_batch_size = {{1, 4, 3}};
  options.speculation.adaptive = true;
  EXPECT_THROW(ExplainEngine(options), Error);
  options.speculation.adaptive = false;
  EXPECT_GT(ExplainEngine(options).memory.kept_row_bytes, 0);
}

TEST(ExplainedWeights, AreOneByteAsStoredAndWithInt8) {
  const int64_t few = GetKernels(SelectIsa()).max_fp8_weights_as_bf16;
  ASSERT_TRUE(few == 0 || few == 512 << 10) << "between a layer's experts and all others";
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine stored = ExplainEngine(options);
  const int64_t expert = 3 * 256 * 128;
  const int64_t experts = 4 * 8 * expert;
  // Keys of W_UK are kept twice, as they are and transposed.
  const int64_t others = 5 * (192 * 256 + 1024 * 192 + 576 * 256 + 1536 * 512 + 256 * 512) +
                         3 * 640 * 256 + 4 * expert;
  const int64_t vocabulary = 2048 * 256;
  const int64_t routers = 4 * 16 * 256;  // eight rows take a panel of 16
  const int64_t fp8 = stored.memory.weights.at(DType::kF8E4M3);
  const int64_t codes = few == 0 ? experts + others : experts;
  EXPECT_GE(fp8, codes);
  EXPECT_LE(fp8, codes * 101 / 100) << "scales are few";
  EXPECT_EQ(stored.memory.weights.at(DType::kBF16),
            2 * (experts + others - codes + 2 * vocabulary + routers));
  EXPECT_THAT(DecisionOf(stored, "quantization"), HasSubstr("none"));

  options.quantization = WeightQuantization::kInt8;
  const LoadedEngine int8 = ExplainEngine(options);
  EXPECT_EQ(int8.memory.weights.count(DType::kF8E4M3), 0);
  EXPECT_EQ(int8.memory.weights.at(DType::kBF16), 2 * (vocabulary + routers)) << "not the head";
  const int64_t quantized = int8.memory.weights.at(DType::kI8);
  EXPECT_GE(quantized, experts + others + vocabulary);
  EXPECT_LE(quantized, (experts + others + vocabulary) * 104 / 100);
  EXPECT_THAT(DecisionOf(int8, "quantization"), HasSubstr("int8 (--quantization"));
}

TEST(ExplainReport, Text) {
  const std::string text = ExplainText("models/tiny", BundledModel());
  EXPECT_THAT(
      text, AllOf(HasSubstr("deepseek_v3"), HasSubstr("5: 1 dense, 4 with experts"),
                  HasSubstr("8 routed in 4 groups"), HasSubstr("YaRN, factor 4"),
                  HasSubstr("10.3 M"), HasSubstr("1234 tokens"), HasSubstr("ChainDrafter, k = 3")));
}

// What the first of several ranks keeps of a group is a part of it: its bytes are told, no bits of
// a weight.
TEST(ExplainReport, BitsOfAWeightAreToldOfOneRank) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine one = ExplainEngine(options);
  EXPECT_THAT(ExplainText("models/tiny", one), HasSubstr("; in memory bfloat16: 16."));
  options.tensor_parallel_size = 2;
  const LoadedEngine two = ExplainEngine(options);
  const std::string text = ExplainText("models/tiny", two);
  EXPECT_THAT(text, HasSubstr("on the first rank bfloat16, "));
  EXPECT_THAT(text, Not(HasSubstr("; in memory ")));
  const auto groups_of = [](const LoadedEngine& explained) {
    return Json::parse(ExplainJson("models/tiny", explained))["memory"]["weight_groups"];
  };
  EXPECT_TRUE(groups_of(one).at(0).contains("memory_bits"));
  EXPECT_FALSE(groups_of(two).at(0).contains("memory_bits"));
}

TEST(ExplainReport, Json) {
  const Json object = Json::parse(ExplainJson("models/tiny", BundledModel()));
  EXPECT_EQ(object["shapes"]["kv_lora_rank"], 512);
  EXPECT_EQ(object["parameters"]["target"], 10336480);
  EXPECT_EQ(object["memory"]["kv_tokens"], 1234);
  EXPECT_EQ(object["memory"]["kv_groups"], Json::array());
  EXPECT_EQ(object["decisions"][0]["what"], "drafter");
}

}  // namespace
}  // namespace outrider::cli
