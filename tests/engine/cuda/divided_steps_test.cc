// Steps whose requests are divided among ranks on GPUs are recorded once and repeated, however the
// requests lie: a rank without any runs along, ranks have more and fewer than others, requests
// come, end and are preempted. All ranks run on device 0.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/cuda/gpu_ranks.h"

namespace outrider::cuda {
namespace {

class DividedStepsTest : public RanksOnGpus<HopperTest<>> {
 protected:
  int gpus() const override { return 1; }

  /// The requests' answers on `ranks` ranks, which are those of one GPU.
  EngineCounters Run(const TestEngineOptions& asked, int32_t ranks,
                     const std::vector<GenerationRequest>& requests) const {
    TestEngineOptions options = OnGpu(asked);
    const std::vector<Generated> expected = AnswersOf(options, requests, &BundledTokenizer());
    options.divides_requests = true;
    return ExpectAnswers(options, ranks, requests, expected);
  }

  static GenerationRequest RequestOf(uint32_t seed, size_t prompt, int32_t tokens) {
    GenerationRequest request = LongRequest(seed, prompt, kBundledVocab);
    request.sampling.max_tokens = tokens;
    request.sampling.prompt_logprobs.reset();
    return request;
  }
};

TEST_F(DividedStepsTest, ARankWithoutRequestsRunsAlong) {
  for (const int32_t ranks : {2, 4}) {
    const EngineCounters alone =
        Run({.drafter = DrafterKind::kNone}, ranks, {RequestOf(1, 20, 200)});
    EXPECT_GT(alone.gpu->passes_repeated, 4 * alone.gpu->passes_launched) << ranks;
    for (const DrafterKind drafter : {DrafterKind::kChain, DrafterKind::kRepeated}) {
      const EngineCounters drafted = Run({.drafter = drafter}, ranks, {RequestOf(2, 20, 200)});
      EXPECT_GT(drafted.gpu->passes_repeated, drafted.gpu->passes_launched) << ranks;
    }
  }
}

/// Three requests on two ranks, then two, then one; then those that come later.
TEST_F(DividedStepsTest, RanksHaveMoreAndFewerRowsThanOthers) {
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 7; ++i) {
    requests.push_back(RequestOf(i, 10 + 40 * (i % 3), 30 + 25 * static_cast<int32_t>(i % 4)));
  }
  for (const DrafterKind drafter :
       {DrafterKind::kNone, DrafterKind::kChain, DrafterKind::kNgram, DrafterKind::kRepeated}) {
    const EngineCounters counters = Run({.drafter = drafter, .max_num_seqs = 3}, 2, requests);
    EXPECT_GT(counters.gpu->passes_repeated, 0);
  }
  const EngineCounters counters = Run({.drafter = DrafterKind::kNone}, 4, requests);
  EXPECT_GT(counters.gpu->passes_repeated, counters.gpu->passes_launched);
}

TEST_F(DividedStepsTest, PreemptedRequestsComeBack) {
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 8; ++i) requests.push_back(RequestOf(i, 100, 120));
  for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kChain}) {
    // A rank has room for the prompts of four requests, and for two whole ones.
    const EngineCounters counters =
        Run({.drafter = drafter, .num_blocks = 40, .max_model_len = 512}, 2, requests);
    EXPECT_GT(counters.num_preemptions, 0);
    EXPECT_GT(counters.gpu->passes_repeated, 0);
  }
}

}  // namespace
}  // namespace outrider::cuda
