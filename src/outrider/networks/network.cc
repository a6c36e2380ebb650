#include "outrider/networks/network.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"

namespace outrider {

CacheShape CacheShapeOf(const ModelConfig& config) {
  const auto& a = std::get<MlaSpec>(config.layers.front().attention);
  return {.heads = a.heads, .latent = a.latent, .nope = a.nope, .rope = a.rope, .value = a.value};
}

Network::Network(ModelConfig config, const NetworkOptions& options, int32_t num_modules)
    : config_(std::move(config)), options_(options), num_modules_(num_modules) {}

int32_t Network::num_cache_layers() const {
  return static_cast<int32_t>(config_.num_hidden_layers()) + num_modules_;
}

int32_t Network::cache_width() const {
  return static_cast<int32_t>(CacheWidth(options_.attention.cache_form(), CacheShapeOf(config_)));
}

void Network::Forward(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden,
                      std::span<const LayerTap> taps) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  OUTRIDER_CHECK(std::ranges::is_sorted(taps, {}, &LayerTap::layer));
  OUTRIDER_CHECK(taps.empty() ||
                 (taps.front().layer >= 0 && taps.back().layer < config_.num_hidden_layers()));
  RunTarget(layout, cache, hidden, taps);
}

void Network::ForwardMtp(int32_t m, const BatchLayout& layout, KvCache& cache,
                         MatrixView<const float> previous, MatrixView<float> hidden) {
  ForwardMtp(m, no_rows_, layout, cache, previous, hidden);
}

void Network::ForwardMtp(int32_t m, const BatchLayout& entries, const BatchLayout& outputs,
                         KvCache& cache, MatrixView<const float> previous,
                         MatrixView<float> hidden) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  OUTRIDER_CHECK(m >= 0 && m < num_modules_);
  RunMtp({m, entries, outputs, previous, hidden}, cache);
}

void Network::Logits(int32_t module, MatrixView<const float> hidden, std::span<const int32_t> rows,
                     MatrixView<float> logits) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(rows.size()));
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  RunHead(module, hidden, rows, logits);
}

void Network::ArgMaxTokens(int32_t module, MatrixView<const float> hidden,
                           std::span<const int32_t> rows, int32_t num_tokens,
                           std::span<int32_t> tokens) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  OUTRIDER_CHECK(tokens.size() == rows.size());
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  RunHeadArgMax(module, hidden, rows, num_tokens, tokens);
}

const AttentionPlan& Network::Plan(const BatchLayout& layout) {
  options_.attention.Assign(layout);
  return options_.attention;
}

std::span<const LayerTap> Network::FillTaps(std::span<const LayerTap> taps, int32_t layer,
                                            MatrixView<const float> x) {
  for (; !taps.empty() && taps.front().layer == layer; taps = taps.subspan(1)) {
    const MatrixView<float> out = taps.front().out;
    OUTRIDER_CHECK(out.rows == x.rows && out.cols == x.cols);
    for (int64_t r = 0; r < x.rows; ++r) std::copy_n(x.row(r), x.cols, out.row(r));
  }
  return taps;
}

}  // namespace outrider
