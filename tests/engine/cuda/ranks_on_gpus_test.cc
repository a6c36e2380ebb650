// Ranks that have a GPU each give what one GPU gives, bit for bit: on 2, 4 and 8 GPUs, where there
// are as many. Every rank has a part of all that is divided. Needs GPUs of compute capability 9.0,
// and cuDNN.
#include <algorithm>

#include "outrider/parallel/ended_rank.h"
#include "tests/engine/acting_rank.h"
#include "tests/engine/cuda/gpu_ranks.h"
#include "tests/networks/models_for_ranks.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"

namespace outrider::cuda {
namespace {

class RanksOnGpusTest : public RanksOnGpus<SeveralGpusTest> {
 protected:
  int gpus() const override { return GetParam(); }

  /// On as many ranks as GPUs.
  void ExpectEqual(const TestEngineOptions& options, bool divides_requests = false) const {
    ExpectEqualOnRanks(options, VocabOf(options.checkpoint), {gpus()}, divides_requests);
  }
  static TestEngineOptions Of(const ModelForRanks& model, TestEngineOptions options) {
    options.checkpoint = model.directory();
    if (model.has_dummy_weights()) options.dummy_seed = 9;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Gpus, RanksOnGpusTest, ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

TEST_P(RanksOnGpusTest, LatentAttention) {
  const V3ForRanks v3(gpus());
  ExpectEqual(Of(v3, {.drafter = DrafterKind::kNone}));
  ExpectEqual(Of(v3, {.drafter = DrafterKind::kChain}));
  ExpectEqual(Of(v3, {.rounded_cache = true, .adaptive = true, .probabilistic_drafts = true}));
}

TEST_P(RanksOnGpusTest, RowsOfPromptsTravelInChunks) {
  const V3ForRanks v3(gpus());
  ExpectEqual(Of(v3, {.drafter = DrafterKind::kChain, .make_communicators = InSmallChunks}));
  ExpectEqual(Of(v3, {.drafter = DrafterKind::kNone, .make_communicators = InSmallChunks}),
              /*divides_requests=*/true);
}

TEST_P(RanksOnGpusTest, GroupedQueryAttention) {
  const SmallStepModel step(kBundledVocab, 20, GpuStepSizes(gpus()));
  ExpectEqual({.checkpoint = step.directory(), .dummy_seed = 7, .cache_form = KvCacheForm::kHeads});
}

TEST_P(RanksOnGpusTest, AttentionToChosenTokens) {
  for (const SmallSparseSizes& sizes : {GpuV32Sizes(gpus()), GpuGlm5Sizes(gpus())}) {
    const SmallSparseModel sparse(kBundledVocab, sizes);
    ExpectEqual({.checkpoint = sparse.directory(),
                 .dummy_seed = 11,
                 .drafter = DrafterKind::kRepeated,
                 .cache_form = KvCacheForm::kHeads});
  }
}

TEST_P(RanksOnGpusTest, LinearAttention) {
  const ModelDirectory ling(
      WithHeads(WithGpuHeads(SmallLingConfig(kBundledVocab)), std::max(4, gpus())));
  ExpectEqual({.checkpoint = ling.directory(),
               .dummy_seed = 13,
               .drafter = DrafterKind::kRepeated,
               .block_size = 256});
}

TEST_P(RanksOnGpusTest, DeepSeekV4WithItsModuleAndWithDSpark) {
  ExpectEqual(Of(V4ForRanks(TinyV4Directory(), gpus()),
                 {.drafter = DrafterKind::kRepeated, .cache_form = KvCacheForm::kHeads}));
  const V4ForRanks dspark(TinyDSparkDirectory(), gpus());
  ExpectEqual(
      Of(dspark, {.drafter = DrafterKind::kBlock, .k = 5, .cache_form = KvCacheForm::kHeads}));
}

TEST_P(RanksOnGpusTest, RequestsAreDividedAmongRanks) {
  constexpr bool kDivided = true;
  ExpectEqual(Of(V3ForRanks(gpus()), {.drafter = DrafterKind::kChain, .adaptive = true}), kDivided);
  const SmallSparseModel sparse(kBundledVocab, GpuV32Sizes(gpus()));
  ExpectEqual({.checkpoint = sparse.directory(),
               .dummy_seed = 11,
               .drafter = DrafterKind::kRepeated,
               .cache_form = KvCacheForm::kHeads},
              kDivided);
}

TEST_P(RanksOnGpusTest, ARankThatFailsIsNamed) {
  const V3ForRanks v3(gpus());
  TestEngineOptions options = OnRanks(OnGpu(Of(v3, {})), gpus());
  options.queued = false;
  GenerationRequest request = LongRequest(3, 20, VocabOf(v3.directory()));
  request.sampling.max_tokens = 50;
  const int32_t last = gpus() - 1;
  const auto [told, seconds] = ToldWhenRankActs(
      options, last, 60, [] { throw Error(ErrorCode::kUnavailable, "no memory is left"); },
      request);
  EXPECT_EQ(told, EndedRankText({last, gpus()}, "no memory is left"));
  EXPECT_LT(seconds, 10);
}

}  // namespace
}  // namespace outrider::cuda
