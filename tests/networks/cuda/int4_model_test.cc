// The bundled model with INT4 experts on a GPU, beside the CPU in float32. Needs a GPU of compute
// capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include "outrider/networks/network_loader.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/logprob_errors.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

constexpr int kBlock = 64;

using Int4ModelTest = HopperTest<>;

/// float32 [tokens, vocabulary] on the CPU.
std::vector<float> CpuLogits(const LoadedModel& loaded, const std::vector<int32_t>& ids) {
  const auto rows = static_cast<int64_t>(ids.size());
  const auto num_blocks = static_cast<int32_t>((rows + kBlock - 1) / kBlock);
  KvCache cache = loaded.MakeCache(num_blocks, kBlock);
  const std::vector<int32_t> blocks = FirstBlocks(num_blocks);
  BatchLayout layout(kBlock);
  layout.Assign(std::vector{RequestWork{.slot = 0,
                                        .phase = Phase::kPromptChunk,
                                        .tokens = ids,
                                        .draft_tokens = {},
                                        .samples = false,
                                        .block_tables = {&blocks, 1}}});
  const int64_t width = loaded.model->hidden_size();
  const int64_t vocab = loaded.model->vocab_size();
  std::vector<float> hidden(static_cast<size_t>(rows * width));
  loaded.model->Forward(layout, cache, {hidden.data(), rows, width});
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  loaded.model->Logits(Network::kTarget, {hidden.data(), rows, width},
                       FirstBlocks(static_cast<int32_t>(rows)), {logits.data(), rows, vocab});
  return logits;
}

TEST_F(Int4ModelTest, LogProbabilitiesBesideTheCpus) {
  const Int4TinyModel model;
  const ModelConfig config = ReadModelConfig(model.directory());
  const auto source = OpenCheckpoint(model.directory(), config);
  TestNetwork network(config, *source, 3);
  const LoadedModel cpu(model.directory(), DType::kF32, SelectIsa(), 4);
  const GoldenFile golden(GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors");
  const auto vocab = static_cast<size_t>(config.vocab_size);
  LogprobErrors errors;
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    const std::vector<float> want = CpuLogits(cpu, ids);
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      const HiddenRows rows = RowsOfText(network, ids, phase, 50, kBlock);
      errors.Judge(network.Logits(rows[0]), want, vocab, std::span(ids).subspan(1),
                   fmt::format("case {} {}", c, phase == Phase::kDecode ? "rows" : "prompt"));
    }
  }
  std::printf("worst log-probability: off by %.4f; %d near-ties\n", errors.worst, errors.near_ties);
}

// 4 layers and 3 modules of 8 experts stay codes, whose scales take another eighth.
TEST_F(Int4ModelTest, ExpertsStayCodes) {
  const Int4TinyModel model;
  const ModelConfig config = ReadModelConfig(model.directory());
  const auto source = OpenCheckpoint(model.directory(), config);
  const CudaOps ops;
  const WeightSizes sizes =
      MeasureWeights(ops, config, 3, *source, {.compute_dtype = DType::kBF16}).target;
  const int64_t experts = int64_t{4} * 8 * 3 * 256 * 128;
  ASSERT_TRUE(sizes.contains(DType::kI4));
  EXPECT_GE(sizes.at(DType::kI4), experts / 2 * 9 / 8);
  EXPECT_FALSE(sizes.contains(DType::kF8E4M3));
}

}  // namespace
}  // namespace outrider::cuda
