// The experts of tokens on a GPU: those of a request alone without drafts, whatever runs beside it,
// drafts for it, throws it out or is cached. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/engine/expert_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct ExpertsCase {
  const char* name;
  uint32_t seed;
  TestEngineOptions options;
  bool preempts = false;
};

class CudaRoutedExpertsTest : public HopperTest<::testing::TestWithParam<ExpertsCase>> {};

TEST_P(CudaRoutedExpertsTest, TogetherEqualsAlone) {
  static const CudaOps* const ops = new CudaOps;
  const auto& [name, seed, given, preempts] = GetParam();
  TestEngineOptions options = given;
  options.ops = ops;
  options.threads = 2;
  options.queued = true;
  ExpectExpertsTogetherAsAlone(name, options, seed, preempts);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, CudaRoutedExpertsTest,
    ::testing::Values(
        ExpertsCase{
            "plain_small_chunks", 1, {.drafter = DrafterKind::kNone, .max_num_batched_tokens = 37}},
        ExpertsCase{"chain3", 2, {.k = 3}},
        ExpertsCase{"chain3_preempted",
                    2,
                    {.k = 3, .num_blocks = 26, .max_num_batched_tokens = 37, .max_model_len = 400},
                    true},
        ExpertsCase{
            "repeated3_adaptive", 3, {.drafter = DrafterKind::kRepeated, .k = 3, .adaptive = true}},
        ExpertsCase{"ngram3", 1, {.drafter = DrafterKind::kNgram, .k = 3}},
        ExpertsCase{"eagle3", 2, {.drafter = DrafterKind::kEagle3, .k = 3}}),
    [](const auto& test) { return std::string(test.param.name); });

using CudaRoutedExpertsOptionTest = HopperTest<>;

// Layers without experts say 0, others as many different experts as the model's tokens have.
TEST_F(CudaRoutedExpertsOptionTest, AnEngineTellsThemWhereItIsAskedTo) {
  EngineOptions options = SmallEngineOptions();
  options.enable_return_routed_experts = true;
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  GenerationRequest request = Request(TrainedPrompts().front(), 20);
  request.experts_from = 0;
  const Generated got = RunOne(*loaded.engine, request);
  const ModelConfig config = ReadModelConfig(TinyModelDirectory());
  const RoutedExperts& experts = *got.experts;
  ASSERT_EQ(experts.tokens, static_cast<int32_t>(TrainedPrompts().front().size()) + 20 - 1);
  // The CPU's sums have other last bits, by which few choices differ.
  const auto on_cpu = MakeTestEngine({.tells_experts = true});
  const Generated same = RunOne(*on_cpu, request);
  ASSERT_EQ(same.experts->ids.size(), experts.ids.size());
  const auto top_k = static_cast<size_t>(experts.shape.top_k);
  size_t equal = 0;
  for (size_t i = 0; i < experts.ids.size(); ++i) {
    const size_t layer = i / top_k % static_cast<size_t>(experts.shape.layers);
    const MoeSpec* const moe = config.layers[layer].moe();
    ASSERT_GE(experts.ids[i], 0);
    ASSERT_LT(experts.ids[i], moe == nullptr ? 1 : moe->router.experts);
    if (experts.ids[i] == same.experts->ids[i]) ++equal;
  }
  EXPECT_GE(equal * 100, experts.ids.size() * 90);
}

}  // namespace
}  // namespace outrider::cuda
