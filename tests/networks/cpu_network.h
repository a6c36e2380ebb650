// A network on the CPU, which judges other tables of operations and devices, for tests; and
// requests whose tokens are known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "outrider/checkpoint/weight_source.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cpu/cpu_ops.h"

namespace outrider {

/// Paths of a network's own attention; latent attention over a latent cache.
inline RowPaths RowPathsOfNetwork(const ModelConfig& config) {
  return RowPathsOf(config, KvCacheForm::kLatent);
}

inline int TestThreads() { return static_cast<int>(std::thread::hardware_concurrency()); }

/// What a GPU and a CPU keep of a cache of 8 bits that a test asks for: codes as of a GPU, unless
/// it says what is published.
inline CacheNumbers OfGpu(CacheNumbers numbers) {
  if (numbers.form == Fp8Form::kPublished) numbers.form = Fp8Form::kPerTensor;
  return numbers;
}
inline CacheNumbers OfCpu(CacheNumbers numbers) {
  numbers = OfGpu(numbers);
  if (numbers.form == Fp8Form::kPublishedNumbers) numbers.form = Fp8Form::kPublished;
  return numbers;
}

/// A cache with the blocks of `groups`, if there are any, whatever numbers it has.
inline CacheConfig ConfigLike(const NetworkCache& needs, const CacheNumbers& numbers,
                              int32_t block_size, int32_t num_blocks,
                              const std::vector<CacheGroupSpec>& groups) {
  CacheConfig config = MakeCacheConfig(needs, numbers, block_size, num_blocks);
  for (size_t i = 0; i < groups.size(); ++i) {
    config.groups[i].tokens_per_block = groups[i].tokens_per_block;
  }
  return config;
}

/// A network on the CPU, and what it gives. Two of them judge the device's: in float32, and with
/// operands and cache rounded to bfloat16 as the device rounds them.
class CpuNetwork {
 public:
  /// cache: unset, `dtype`. groups: of the cache that steps are laid out for, if it is another's.
  CpuNetwork(const ModelConfig& config, const WeightSource& source, int mtp_modules, DType dtype,
             int32_t num_blocks, int32_t block_size,
             const cpu::CpuOps& ops = cpu::GetCpuOps(SelectIsa()),
             const std::optional<CacheNumbers>& cache = std::nullopt,
             const std::vector<CacheGroupSpec>& groups = {})
      : numbers_(cache ? OfCpu(*cache) : CacheNumbers(dtype)),
        pool_(TestThreads()),
        network_(
            LoadNetwork(config, mtp_modules, source, {.compute_dtype = dtype},
                        {{ops, &pool_},
                         dtype,
                         AttentionPlan(AttentionBackend::kRagged, 4, RowPathsOfNetwork(config))})),
        cache_(network_->device(),
               ConfigLike(network_->cache_needs(), numbers_, block_size, num_blocks, groups),
               network_->cache_needs().layers, numbers_) {}

  const CacheConfig& cache_config() const { return cache_.config(); }

  /// The residual stream after each layer, float32 [rows, hidden], then the hidden rows, float32
  /// [rows, output width].
  std::vector<std::vector<float>> Forward(const BatchLayout& layout) {
    const auto layers = static_cast<size_t>(network_->config().num_hidden_layers());
    const int64_t rows = layout.num_rows();
    std::vector<std::vector<float>> result(
        layers, std::vector<float>(static_cast<size_t>(rows * network_->hidden_size())));
    result.emplace_back(static_cast<size_t>(rows * network_->output_width()));
    std::vector<LayerTap> taps;
    for (size_t i = 0; i < layers; ++i) {
      taps.push_back({.layer = static_cast<int32_t>(i),
                      .out = MatrixView<float>(result[i].data(), rows, network_->hidden_size())});
    }
    network_->Forward(layout, cache_, View(result.back()), taps);
    return result;
  }

  std::vector<float> ForwardMtp(int m, const BatchLayout& layout, std::vector<float> previous) {
    network_->ForwardMtp(m, layout, cache_, View(previous), View(previous));
    return previous;
  }

  /// Logits of rows of hidden states: float32 [rows, vocabulary].
  std::vector<float> Logits(std::vector<float> hidden) {
    const auto rows = static_cast<int64_t>(hidden.size()) / network_->output_width();
    std::vector<float> logits(static_cast<size_t>(rows * network_->vocab_size()));
    std::vector<int32_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    network_->Logits(Network::kTarget, View(hidden), numbers,
                     {logits.data(), rows, network_->vocab_size()});
    return logits;
  }

 private:
  MatrixView<float> View(std::vector<float>& rows) const {
    const int64_t width = network_->output_width();
    return {rows.data(), static_cast<int64_t>(rows.size()) / width, width};
  }

  CacheNumbers numbers_;  // as a GPU keeps them
  ThreadPool pool_;
  std::unique_ptr<Network> network_;
  KvCache cache_;
};

/// A request whose tokens are known: the first `prompt` of them in the prompt's role. `tokens` has
/// a few more than the `length` that are run, for MTP modules.
struct KnownRequest {
  std::vector<int32_t> tokens;
  int32_t prompt = 0;
  int32_t length = 0;
  std::vector<std::vector<int32_t>> tables;  // by cache group
  StateTables state;                         // where the network keeps running states

  /// Positions [first, first + count), all of one role; tokens `shift` further on.
  RequestWork Work(int32_t slot, int32_t first, int32_t count, int32_t shift) const {
    return {.slot = slot,
            .phase = first < prompt ? Phase::kPromptChunk : Phase::kDecode,
            .context_length = first,
            .tokens = std::span(tokens).subspan(static_cast<size_t>(first + shift),
                                                static_cast<size_t>(count)),
            .draft_tokens = {},
            .samples = false,
            .block_tables = tables,
            .state = {.tables = &state, .tokens = StateTokens(first)}};
  }
};

/// log softmax of a row, in double precision.
inline std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - max - std::log(sum));
  return result;
}

}  // namespace outrider
