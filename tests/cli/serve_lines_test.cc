// What serve prints: load progress, memory, statistics, times of steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "outrider/cli/engine_start.h"
#include "outrider/cli/load_progress.h"
#include "outrider/cli/memory_table.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/telemetry/stats_log.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(StepTimesLog, ALineForEachBatchSize) {
  EXPECT_EQ(StepTimesLine({8, {0.002, 0.0026, 0.005}}),
            "step times, 8 requests: 2 ms without drafts, x 1.30 with 1, x 2.50 with 2");
  EXPECT_EQ(StepTimesLine({1, {0.0123, 0.0246}}),
            "step times, 1 request: 12.3 ms without drafts, x 2.00 with 1");
  EXPECT_EQ(StepTimesLine({2, {0.01, 0.011}, 0.0103}),
            "step times, 2 requests: 10 ms without drafts, x 1.10 with 1, x 1.03 with lookups that "
            "find none");
}

}  // namespace
}  // namespace outrider::cli
