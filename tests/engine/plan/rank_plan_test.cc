// Ranks and threads, from options and the processors that there are.
#include "outrider/engine/plan/rank_plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string RefusalOf(const EngineOptions& options, DeviceKind device = DeviceKind::kCpu,
                      const ModelFacts& model = TinyV3()) {
  return RefusalBy([&] {
    Decisions decisions;
    PlanRanks(options, model, device, decisions);
  });
}

TEST(RankPlan, RanksShareHeadsOnAProcessor) {
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 4}), "");
  EXPECT_THAT(RefusalOf({.tensor_parallel_size = 3}), HasSubstr("--tensor-parallel-size"));
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 1}, DeviceKind::kCuda), "");
  ModelFacts drafter = TinyV3WithEagle3();
  std::get<MlaSpec>(drafter.drafter->config.layers.front().attention).heads = 3;
  EXPECT_NE(RefusalOf({.tensor_parallel_size = 2}, DeviceKind::kCpu, drafter), "");
}

TEST(RankPlan, SeveralGpusRunWhatOneRuns) {
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 2}, DeviceKind::kCuda), "");
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 2}, DeviceKind::kCuda, TinyDSpark()), "");
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 2, .rank_devices = {0, 1}}, DeviceKind::kCuda), "");
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 2, .rank_devices = {0, 0}}, DeviceKind::kCuda),
            "ranks that share a GPU need --kv-cache-memory-bytes");
}

TEST(RankPlan, RanksThatShareRequestsNeedNotShareHeads) {
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 3, .data_parallel_attention = true}), "");
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 1, .data_parallel_attention = true}),
            "--data-parallel-attention shares requests among ranks: it needs "
            "--tensor-parallel-size 2 or more");
  ModelFacts narrow = TinyV3();
  narrow.config.layers.back().mlp = DenseMlpSpec{.width = 2};
  EXPECT_THAT(RefusalOf({.tensor_parallel_size = 3, .data_parallel_attention = true},
                        DeviceKind::kCpu, narrow),
              HasSubstr("columns of an MLP"));
}

TEST(RankPlan, HeadsOfLinearAttentionAreShared) {
  ModelFacts model = TinyV3();
  model.config.layers.back().attention =
      KdaSpec{.heads = 4, .head_dim = 16, .conv = 4, .decay_bound = {}};
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 4}, DeviceKind::kCpu, model), "");
  EXPECT_THAT(RefusalOf({.tensor_parallel_size = 8}, DeviceKind::kCpu, model),
              HasSubstr("cannot share 4 heads of linear attention; use 1, 2, 4"));
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 3, .data_parallel_attention = true},
                      DeviceKind::kCpu, model),
            "");
  EXPECT_EQ(RefusalOf({.tensor_parallel_size = 2}, DeviceKind::kCuda, model), "");
}

TEST(RankPlan, EveryRankHasAThread) {
  EXPECT_EQ(RefusalOf({.num_threads = 4, .tensor_parallel_size = 4}), "");
  EXPECT_EQ(RefusalOf({.num_threads = 3, .tensor_parallel_size = 4}),
            "--num-threads is 3, but 4 ranks need a thread each: use 4 or more");
}

TEST(RankPlan, SaysThatThereAreSeveral) {
  Decisions decisions;
  PlanRanks({}, TinyV3(), DeviceKind::kCpu, decisions);
  EXPECT_THAT(decisions, IsEmpty());
  PlanRanks({.tensor_parallel_size = 2}, TinyV3(), DeviceKind::kCpu, decisions);
  EXPECT_THAT(DecisionOn("ranks", decisions), HasSubstr("2, threads of this process"));
  decisions.clear();
  PlanRanks({.tensor_parallel_size = 2}, TinyV3(), DeviceKind::kCuda, decisions);
  EXPECT_THAT(DecisionOn("ranks", decisions), HasSubstr("2, GPUs of this process"));
  PlanRanks({.tensor_parallel_size = 2, .data_parallel_attention = true}, TinyV3(),
            DeviceKind::kCpu, decisions);
  EXPECT_THAT(DecisionOn("attention", decisions), HasSubstr("of its own requests on every rank"));
}

TEST(ThreadPlan, OnlyATeamThatTakesAllProcessorsIsPinned) {
  const std::vector<int> processors = {2, 3, 5};
  const ComputeThreads all = PlanThreads({}, processors);
  EXPECT_EQ(all.count, 3);
  EXPECT_EQ(all.processors, processors);
  EXPECT_EQ(PlanThreads({.num_threads = 3}, processors).processors, processors);
  for (const int count : {2, 4}) {
    const ComputeThreads threads = PlanThreads({.num_threads = count}, processors);
    EXPECT_EQ(threads.count, count);
    EXPECT_THAT(threads.processors, IsEmpty()) << count;
  }
  EXPECT_THAT(PlanThreads({.pin_threads = false}, processors).processors, IsEmpty());
  EXPECT_THAT(PlanThreads({}, {7}).processors, IsEmpty()) << "one thread goes where it likes";
}

TEST(ThreadPlan, RanksShareThreadsOut) {
  const ComputeThreads all = {5, {10, 11, 12, 13, 14}};
  EXPECT_EQ(ThreadsOf(all, {0, 2}).count, 2);
  EXPECT_THAT(ThreadsOf(all, {0, 2}).processors, ElementsAre(10, 11));
  EXPECT_EQ(ThreadsOf(all, {1, 2}).count, 3);
  EXPECT_THAT(ThreadsOf(all, {1, 2}).processors, ElementsAre(12, 13, 14));
  EXPECT_EQ(ThreadsOf(all, {0, 1}).processors, all.processors);
  // More ranks than threads: each has one, which no processor is kept for.
  const ComputeThreads two = {2, {10, 11}};
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ThreadsOf(two, {rank, 4}).count, 1);
    EXPECT_THAT(ThreadsOf(two, {rank, 4}).processors, IsEmpty());
  }
  EXPECT_THAT(ThreadsOf({4, {}}, {1, 2}).processors, IsEmpty());
}

}  // namespace
}  // namespace outrider
