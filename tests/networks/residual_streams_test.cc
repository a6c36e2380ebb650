// How often a pass of DeepSeek-V4 reads and writes the residual streams of its rows, where each
// operation over them is one launch (docs/cuda-kernels.md).
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "outrider/ops/hyper.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

/// Counts the operations over streams that a network asks for, by what they do to them.
class StreamCountingOps : public cpu::CpuOps {
 public:
  StreamCountingOps() : CpuOps(GetKernels(SelectIsa())) {}

  void HyperMix(const Context& context, const HyperShape& shape,
                const HyperMixArgs& args) const override {
    Count(args.add.y.rows > 0);
    *in_mix_ = true;  // whose addition is an operation of its own here
    CpuOps::HyperMix(context, shape, args);
    *in_mix_ = false;
  }
  void HyperAdd(const Context& context, const HyperShape& shape, const HyperAddArgs& args,
                Tensor streams) const override {
    if (!*in_mix_) Count(/*writes_too=*/true);
    CpuOps::HyperAdd(context, shape, args, streams);
  }
  void HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                 Tensor mean) const override {
    Count(/*writes_too=*/false);
    CpuOps::HyperMean(context, shape, streams, mean);
  }

  const std::unique_ptr<int64_t> reads = std::make_unique<int64_t>(0);
  const std::unique_ptr<int64_t> writes = std::make_unique<int64_t>(0);

 private:
  void Count(bool writes_too) const {
    ++*reads;
    if (writes_too) ++*writes;
  }

  const std::unique_ptr<bool> in_mix_ = std::make_unique<bool>(false);
};

TEST(ResidualStreamsTest, ALayerReadsAndWritesThemTwice) {
  constexpr int32_t kTokens = 40;
  const StreamCountingOps ops;
  ThreadPool pool(1);
  const ModelConfig config = ReadModelConfig(TinyV4Directory());
  const auto source = OpenCheckpoint(TinyV4Directory(), config);
  const auto network =
      LoadNetwork(config, 0, *source, {DType::kBF16},
                  {{ops, &pool},
                   DType::kBF16,
                   AttentionPlan(AttentionBackend::kRagged, 1,
                                 RowPathsOf(config.first_cached_layer(), KvCacheForm::kHeads))});
  CacheConfig cache_config = MakeCacheConfig(network->cache_needs(), DType::kBF16, 16, 0);
  std::vector<std::vector<int32_t>> tables;
  for (const CacheGroupSpec& group : cache_config.groups) {
    std::vector<int32_t>& pages = tables.emplace_back();
    pages.resize(static_cast<size_t>(group.BlocksBefore(kTokens)));
    std::iota(pages.begin(), pages.end(), cache_config.num_pages);
    cache_config.num_pages += static_cast<int32_t>(pages.size());
  }
  KvCache cache(network->device(), cache_config, network->cache_needs().layers, DType::kBF16);
  BatchLayout layout(cache_config.groups);
  std::vector<int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 10);
  const int64_t layers = config.num_hidden_layers();
  // A prompt, then a row of a decode.
  for (const int32_t first : {0, kTokens - 1}) {
    const int32_t count = first == 0 ? kTokens - 1 : 1;
    layout.Assign(std::vector{RequestWork{
        .phase = first == 0 ? Phase::kPromptChunk : Phase::kDecode,
        .context_length = first,
        .tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
        .draft_tokens = {},
        .samples = false,
        .block_tables = tables}});
    std::vector<float> hidden(static_cast<size_t>(count * network->output_width()));
    *ops.reads = *ops.writes = 0;
    network->Forward(layout, cache, Tensor(hidden.data(), count, network->output_width()));
    EXPECT_EQ(*ops.reads, 2 * layers + 1);
    EXPECT_EQ(*ops.writes, 2 * layers);
  }
}

}  // namespace
}  // namespace outrider
