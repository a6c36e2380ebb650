#include "outrider/ops/cpu/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"

namespace outrider::cpu {
namespace {

RouterSpec Spec(RouterScoring scoring, RouterMethod method) {
  return {.experts = 8,
          .top_k = 2,
          .groups = 4,
          .top_groups = 2,
          .scoring = scoring,
          .method = method,
          .normalise = true,
          .scaling_factor = 2.5};
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed Route(const RouterSpec& spec, std::vector<float> logits, const float* bias) {
  Routed out;
  const int64_t rows = static_cast<int64_t>(logits.size()) / spec.experts;
  out.ids.resize(static_cast<size_t>(rows * spec.top_k));
  out.weights.resize(out.ids.size());
  RouteRows(spec, {logits.data(), rows, spec.experts}, bias, out.ids.data(), out.weights.data());
  return out;
}

TEST(RouterTest, BiasChoosesButDoesNotWeigh) {
  const RouterSpec spec = Spec(RouterScoring::kSigmoid, RouterMethod::kNoAuxTc);
  // Groups {0,1} {2,3} {4,5} {6,7}; without bias experts 0 and 1 would win.
  const std::vector<float> bias = {0, 0, 0, 0, 5, 0, 0, 0};
  const Routed r = Route(spec, {2, 1, 0, 0, -1, 0, 0, 0}, bias.data());
  EXPECT_EQ(r.ids, (std::vector<int32_t>{4, 0}));
  const auto sigmoid = [](float x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_FLOAT_EQ(r.weights[0], 2.5F * sigmoid(-1) / (sigmoid(-1) + sigmoid(2)));
  EXPECT_FLOAT_EQ(r.weights[0] + r.weights[1], 2.5F);
}

TEST(RouterTest, ExpertsThatAreChosenAlreadyAreWeighedByTheirScores) {
  RouterSpec spec = Spec(RouterScoring::kSqrtSoftplus, RouterMethod::kTokenTable);
  std::vector<float> logits = {1, 2, 3, -4, 0, 0, 60, 0};
  const std::vector<int32_t> ids = {6, 3};
  std::vector<float> weights(2);
  WeighRows(spec, {logits.data(), 1, spec.experts}, ids.data(), weights.data());
  const double first = std::sqrt(60.0);
  const double second = std::sqrt(std::log1p(std::exp(-4.0)));
  EXPECT_FLOAT_EQ(weights[0], static_cast<float>(2.5 * first / (first + second)));
  EXPECT_FLOAT_EQ(weights[1], static_cast<float>(2.5 * second / (first + second)));
}

TEST(RouterTest, GroupsAreRankedByTheirBestTwoOrTheirBest) {
  // Group 0 has the single best expert, groups 1 and 2 the best pairs.
  const std::vector<float> logits = {4, -9, 3, 3, 2.9F, 2.9F, 0, 0};
  const std::vector<float> bias(8, 0.0F);
  EXPECT_EQ(Route(Spec(RouterScoring::kSigmoid, RouterMethod::kNoAuxTc), logits, bias.data()).ids,
            (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(
      Route(Spec(RouterScoring::kSoftmax, RouterMethod::kGroupLimitedGreedy), logits, nullptr).ids,
      (std::vector<int32_t>{0, 2}));
}

TEST(RouterTest, DroppedGroupsLoseEvenToNegativeChoices) {
  const std::vector<float> bias = {-9, -9, -9, -9, -8, -8, -8.5F, -8.5F};
  const Routed r = Route(Spec(RouterScoring::kSigmoid, RouterMethod::kNoAuxTc),
                         {0, 0, 0, 0, 0, 0, 0, 0}, bias.data());
  EXPECT_EQ(r.ids, (std::vector<int32_t>{4, 5}));
}

TEST(RouterTest, TheWeightOfASingleExpertIsNormalisedToo) {
  RouterSpec spec = Spec(RouterScoring::kSigmoid, RouterMethod::kNoAuxTc);
  spec.top_k = 1;
  const Routed r = Route(spec, {0, 0, 0, 0, 0, 3, 0, 0}, nullptr);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{5}));
  EXPECT_EQ(r.weights, (std::vector<float>{2.5F}));
}

TEST(RouterTest, TiesGoToTheLowerIndex) {
  RouterSpec spec = Spec(RouterScoring::kSoftmax, RouterMethod::kGreedy);
  spec.normalise = false;
  spec.scaling_factor = 1;
  const Routed r = Route(spec, std::vector<float>(8, 1.0F), nullptr);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.125F);
}

// Lists by expert have room for every row once.
TEST(RouterTest, NanCountsAsTheLeastAndExpertsStayDifferent) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  RouterSpec spec = Spec(RouterScoring::kSigmoid, RouterMethod::kNoAuxTc);
  const std::vector<float> bias(8, -9.0F);
  EXPECT_EQ(Route(spec, {kNan, kNan, kNan, 1, kNan, 2, kNan, kNan}, bias.data()).ids,
            (std::vector<int32_t>{5, 3}));
  const Routed one = Route(spec, {kNan, kNan, kNan, kNan, kNan, kNan, kNan, 0}, bias.data());
  EXPECT_EQ(one.ids, (std::vector<int32_t>{7, 0}));
  EXPECT_TRUE(std::isnan(one.weights[1]));
  const std::vector<float> none(8, kNan);
  EXPECT_EQ(Route(spec, none, bias.data()).ids, (std::vector<int32_t>{0, 1}));
  spec = Spec(RouterScoring::kSoftmax, RouterMethod::kGroupLimitedGreedy);
  spec.top_k = 4;
  EXPECT_EQ(Route(spec, none, nullptr).ids, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Route(spec, {0, 1, 2, 3, 4, 5, 6, kNan}, nullptr).ids,
            (std::vector<int32_t>{0, 1, 2, 3}));  // no sum, so no score
}

// What is told of rows is what their experts' products are made with: in order of choice, to rows
// that other layers share.
TEST(RouterTest, ChosenExpertsAreToldRowByRow) {
  const CpuOps& ops = GetCpuOps(Isa::kReference);
  ThreadPool pool(1);
  const std::unique_ptr<Arena> arena = ops.MakeArena();
  const Context context({ops, &pool}, *arena, DType::kF32);
  const Scratch::Frame frame(*arena);
  const Tensor logits = context.Rows(3, 8);
  const std::vector<float> values = {0, 1, 2, 3, 4, 9, 8, 5,  // of row 0
                                     7, 1, 0, 0, 0, 0, 9, 0,  // 1
                                     0, 0, 0, 6, 5, 0, 0, 0};
  std::ranges::copy(values, logits.floats().data);
  RouterSpec spec = Spec(RouterScoring::kSoftmax, RouterMethod::kGreedy);
  const Routing& routing =
      ops.Route(context, spec, *ops.MakeStepInputs(), 0, ExpertWeights(), logits, nullptr);
  const RoutedShape shape = {.layers = 3, .top_k = 2};
  std::vector<int16_t> ids(4 * 6, -1);
  const ChosenExpertsOfLayers all = {ids.data(), shape};
  ops.ReadChosen(routing, all.Layer(1).From(1));
  EXPECT_EQ(ids, (std::vector<int16_t>{-1, -1, -1, -1, -1, -1,  //
                                       -1, -1, 5,  6,  -1, -1,  //
                                       -1, -1, 6,  0,  -1, -1,  //
                                       -1, -1, 3,  4,  -1, -1}));
  EXPECT_EQ(ChosenExpertsOfLayers().Layer(1).From(1).ids, nullptr);
}

}  // namespace
}  // namespace outrider::cpu
