// Plans of whole layouts: what each backend's kernel gets, and what stays for the expanded form.
#include "outrider/attention/attention_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/attention/test_layout.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kThreshold = 4;

std::vector<int32_t> FirstRows(std::span<const RequestRows> requests) {
  std::vector<int32_t> rows;
  for (const RequestRows& r : requests) rows.push_back(r.first_row);
  return rows;
}

class AttentionPlanTest : public testing::Test {
 protected:
  // Rows: 0 | 1-2 | 3-4 | 5-8 | 9-18 (computed again) | prompt 19-22.
  TestLayout mixed{{{Phase::kPromptEnd, 4, 0},
                    {Phase::kDecode, 4, 30},
                    {Phase::kDecode, 1, 7},
                    {Phase::kDecode, 2, 11},
                    {Phase::kDecode, 10, 50},
                    {Phase::kDecode, 2, 3}},
                   4};

  AttentionPlan Plan(AttentionBackend backend) const {
    AttentionPlan plan(backend, kThreshold);
    plan.Assign(mixed.layout());
    EXPECT_THAT(FirstRows(plan.prompts()), ElementsAre(19));
    EXPECT_EQ(plan.backend(), backend);
    return plan;
  }
};

TEST_F(AttentionPlanTest, RaggedRunsEveryDecodeRequestAsItIs) {
  const AttentionPlan plan = Plan(AttentionBackend::kRagged);
  EXPECT_THAT(FirstRows(plan.decode_runs()), ElementsAre(0, 1, 3, 5, 9));
  EXPECT_EQ(plan.num_decode_rows(), 19);
  EXPECT_EQ(plan.query_length(), 0);
  EXPECT_THAT(plan.left_over(), IsEmpty());
}

TEST_F(AttentionPlanTest, PadRunsEveryDecodeRequestAndCutsLongOnes) {
  const AttentionPlan plan = Plan(AttentionBackend::kUniformPad);
  EXPECT_THAT(FirstRows(plan.decode_runs()), ElementsAre(0, 1, 3, 5, 9, 13, 17));
  EXPECT_EQ(plan.num_decode_rows(), 19);
  EXPECT_EQ(plan.query_length(), kThreshold);
  EXPECT_EQ(plan.decode_runs().back().context_length, 58);
  EXPECT_EQ(plan.decode_runs().back().query_length, 2);
  EXPECT_THAT(plan.left_over(), IsEmpty());
}

TEST_F(AttentionPlanTest, UniformShortestRunsTheShortest) {
  const AttentionPlan plan = Plan(AttentionBackend::kUniformShortest);
  EXPECT_THAT(FirstRows(plan.decode_runs()), ElementsAre(0));
  EXPECT_EQ(plan.query_length(), 1);
  EXPECT_THAT(FirstRows(plan.left_over()), ElementsAre(1, 3, 5, 9));
}

TEST_F(AttentionPlanTest, UniformLargestRunsTheMostFrequent) {
  const AttentionPlan plan = Plan(AttentionBackend::kUniformLargest);
  EXPECT_THAT(FirstRows(plan.decode_runs()), ElementsAre(1, 3));
  EXPECT_EQ(plan.first_decode_row(), 1);
  EXPECT_EQ(plan.num_decode_rows(), 4);
  EXPECT_EQ(plan.query_length(), 2);
  EXPECT_THAT(FirstRows(plan.left_over()), ElementsAre(0, 5, 9));
}

TEST_F(AttentionPlanTest, SingleRunsRequestsOfOneRow) {
  const AttentionPlan plan = Plan(AttentionBackend::kSingle);
  EXPECT_THAT(FirstRows(plan.decode_runs()), ElementsAre(0));
  EXPECT_THAT(FirstRows(plan.left_over()), ElementsAre(1, 3, 5, 9));
}

TEST_F(AttentionPlanTest, PerHeadEntriesTakeEveryRequestInOneCall) {
  AttentionPlan plan(AttentionBackend::kRagged, kThreshold, KvCacheForm::kHeads);
  plan.Assign(mixed.layout());
  EXPECT_THAT(FirstRows(plan.one_path()), ElementsAre(0, 1, 3, 5, 9, 19));
  EXPECT_THAT(plan.decode_runs(), IsEmpty());
  EXPECT_THAT(plan.left_over(), IsEmpty());
  EXPECT_THAT(plan.prompts(), IsEmpty());
  EXPECT_THAT(Plan(AttentionBackend::kRagged).one_path(), IsEmpty());
}

TEST_F(AttentionPlanTest, LayersOfSeveralPathsFindTheirRowsInOnePlan) {
  const AttentionPlan latent = Plan(AttentionBackend::kRagged);
  AttentionPlan plan = latent.Of(RowPaths(KvCacheForm::kLatent) | RowPaths(RowPath::kListed));
  plan.Assign(mixed.layout());
  EXPECT_THAT(FirstRows(plan.one_path()), ElementsAre(0, 1, 3, 5, 9, 19));
  EXPECT_EQ(FirstRows(plan.decode_runs()), FirstRows(latent.decode_runs()));
  EXPECT_EQ(FirstRows(plan.prompts()), FirstRows(latent.prompts()));
  EXPECT_EQ(plan.num_decode_rows(), latent.num_decode_rows());
}

TEST(AttentionPlanDeathTest, PerHeadEntriesHaveNoOtherBackend) {
  EXPECT_DEATH(AttentionPlan(AttentionBackend::kSingle, kThreshold, KvCacheForm::kHeads), "check");
}

TEST_F(AttentionPlanTest, AssignReplacesThePlan) {
  AttentionPlan plan = Plan(AttentionBackend::kUniformPad);
  const TestLayout prompt({{Phase::kPromptChunk, 4, 0}}, 4);
  plan.Assign(prompt.layout());
  EXPECT_THAT(plan.decode_runs(), IsEmpty());
  EXPECT_EQ(plan.num_decode_rows(), 0);
  EXPECT_EQ(plan.query_length(), 0);
  EXPECT_THAT(FirstRows(plan.prompts()), ElementsAre(0));
}

TEST(AttentionPlanRandomTest, EveryRowIsRunOnce) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<TestRequest> requests(static_cast<size_t>(pick(0, 9)));
    for (TestRequest& r : requests) {
      r = {pick(0, 2) == 0 ? Phase::kPromptEnd : Phase::kDecode, pick(1, 9), pick(0, 40)};
    }
    const TestLayout batch(requests, 8);
    for (const AttentionBackend backend : kAllAttentionBackends) {
      AttentionPlan plan(backend, pick(1, 6));
      plan.Assign(batch.layout());
      std::vector<int> runs(static_cast<size_t>(batch.layout().num_rows()));
      for (const auto part : {plan.decode_runs(), plan.left_over(), plan.prompts()}) {
        for (const RequestRows& r : part) {
          for (int32_t j = 0; j < r.query_length; ++j) {
            const auto row = static_cast<size_t>(r.first_row) + static_cast<size_t>(j);
            ++runs[row];
            ASSERT_EQ(batch.layout().positions()[row], r.context_length + j);
          }
        }
      }
      ASSERT_EQ(runs, std::vector<int>(runs.size(), 1)) << AttentionBackendName(backend);
    }
  }
}

}  // namespace
}  // namespace outrider
