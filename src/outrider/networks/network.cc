#include "outrider/networks/network.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"

namespace outrider {

CacheShape CacheShapeOf(const MlaSpec& a) {
  return {.heads = a.heads, .latent = a.latent, .nope = a.nope, .rope = a.rope, .value = a.value};
}

namespace {

/// One layer of the cache: its kind of group, and its width.
struct CacheLayerKind {
  CacheGroupSpec group;
  int64_t width = 0;
};

CacheGroupSpec FullHistory() { return {.name = "full history"}; }

CacheGroupSpec LastTokens(int64_t window, std::string_view what) {
  return {.name = fmt::format("{}last {} tokens", what, window),
          .kind = CacheGroupKind::kSlidingWindow,
          .window = static_cast<int32_t>(window)};
}

/// The entries that a compressor leaves, and the rows that it pools them from.
void AddCompressor(const CompressedSpec& a, int64_t width, std::string_view what,
                   std::vector<CacheLayerKind>& kinds) {
  kinds.push_back({{.name = fmt::format("{} of {} tokens", what, a.ratio),
                    .ratio = static_cast<int32_t>(a.ratio)},
                   width});
  // A value and a gate in every channel.
  const int64_t overlap = a.overlaps ? 2 : 1;
  kinds.push_back(
      {LastTokens(a.ratio * overlap, fmt::format("{} to come, ", what)), 2 * overlap * width});
}

/// What a layer keeps in the cache, in the order of FirstCacheLayer.
std::vector<CacheLayerKind> CacheLayersOf(const AttentionSpec& attention, KvCacheForm form) {
  std::vector<CacheLayerKind> kinds;
  if (const auto* mla = std::get_if<MlaSpec>(&attention)) {
    kinds.push_back({FullHistory(), CacheWidth(form, CacheShapeOf(*mla))});
  } else if (const auto* gqa = std::get_if<GqaSpec>(&attention)) {
    kinds.push_back({gqa->window == 0 ? FullHistory() : LastTokens(gqa->window, ""),
                     2 * gqa->kv_heads * gqa->head_dim});
  } else {
    const auto& a = std::get<CompressedSpec>(attention);
    kinds.push_back({LastTokens(a.window, ""), a.head_dim});
    if (a.ratio > 0) AddCompressor(a, a.head_dim, "entries", kinds);
    if (a.index_heads > 0) AddCompressor(a, a.index_dim, "index keys", kinds);
  }
  return kinds;
}

}  // namespace

NetworkCache NetworkCacheOf(const ModelConfig& config, int32_t num_modules, KvCacheForm form) {
  NetworkCache cache;
  std::vector<int64_t> widths;  // by group
  for (int64_t i = 0; i < config.num_hidden_layers() + num_modules; ++i) {
    for (CacheLayerKind& kind : CacheLayersOf(config.layer(i).attention, form)) {
      size_t group = 0;
      while (group < widths.size() &&
             (cache.groups[group].kind != kind.group.kind ||
              cache.groups[group].window != kind.group.window ||
              cache.groups[group].ratio != kind.group.ratio || widths[group] != kind.width)) {
        ++group;
      }
      if (group == widths.size()) {
        cache.groups.push_back(std::move(kind.group));
        widths.push_back(kind.width);
      }
      cache.layers.push_back(
          {.group = static_cast<int32_t>(group), .width = static_cast<int32_t>(kind.width)});
    }
  }
  return cache;
}

int32_t FirstCacheLayer(const ModelConfig& config, int64_t index) {
  int32_t first = 0;
  for (int64_t i = 0; i < index; ++i) {
    // The form changes widths only.
    first +=
        static_cast<int32_t>(CacheLayersOf(config.layer(i).attention, KvCacheForm::kLatent).size());
  }
  return first;
}

Network::Network(ModelConfig config, NetworkOptions options, int32_t num_modules)
    : config_(std::move(config)),
      options_(std::move(options)),
      num_modules_(num_modules),
      rows_{options_.attention, options_.device.ops.MakeStepInputs()},
      entry_rows_{options_.attention, options_.device.ops.MakeStepInputs()},
      arena_(options_.device.ops.MakeArena()) {}

const StepInputs& Network::Assign(LayoutInputs& rows, const BatchLayout& layout) {
  const Stopwatch watch(busy_seconds_);
  rows.plan.Assign(layout);
  rows.inputs->Assign(MakeContext(), layout, rows.plan);
  return *rows.inputs;
}

void Network::Forward(const BatchLayout& layout, KvCache& cache, Tensor hidden,
                      std::span<const LayerTap> taps) {
  Forward(Assign(rows_, layout), cache, hidden, taps);
}

void Network::Forward(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                      std::span<const LayerTap> taps) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(arena_);
  OUTRIDER_CHECK(std::ranges::is_sorted(taps, {}, &LayerTap::layer));
  OUTRIDER_CHECK(taps.empty() ||
                 (taps.front().layer >= 0 && taps.back().layer < config_.num_hidden_layers()));
  RunTarget(inputs, cache, hidden, taps);
}

void Network::ForwardMtp(int32_t m, const BatchLayout& layout, KvCache& cache, Tensor previous,
                         Tensor hidden) {
  ForwardMtp(m, no_rows_, layout, cache, previous, hidden);
}

void Network::ForwardMtp(int32_t m, const BatchLayout& entries, const BatchLayout& outputs,
                         KvCache& cache, Tensor previous, Tensor hidden) {
  const StepInputs& entry_inputs = Assign(entry_rows_, entries);
  ForwardMtp(m, entry_inputs, Assign(rows_, outputs), cache, previous, hidden);
}

void Network::ForwardMtp(int32_t m, const StepInputs& entries, const StepInputs& outputs,
                         KvCache& cache, Tensor previous, Tensor hidden) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(arena_);
  OUTRIDER_CHECK(m >= 0 && m < num_modules_);
  RunMtp({m, entries, outputs, previous, hidden}, cache);
}

void Network::Logits(int32_t module, Tensor hidden, std::span<const int32_t> rows, Tensor logits) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(arena_);
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(rows.size()));
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  const Context context = MakeContext();
  const HeadRows input = RunBeforeHead(context, module, hidden, rows);
  context.ops.Head(context, input.x, input.rows, input.head, logits);
}

template <typename Run>
void Network::Sample(const StepSampler& sampler, int32_t module, Tensor hidden,
                     std::span<const int32_t> rows, Run run) {
  const Scratch::Frame frame(arena_);
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  const double before = sampler.head_seconds();
  const Context context = MakeContext();
  run(context, RunBeforeHead(context, module, hidden, rows));
  busy_seconds_ += sampler.head_seconds() - before;
}

void Network::Verify(StepSampler& sampler, Tensor hidden, std::span<const int32_t> rows,
                     std::span<const VerifyRequest> requests) {
  Sample(sampler, kTarget, hidden, rows, [&](const Context& context, const HeadRows& head_rows) {
    sampler.Verify(context, head_rows, requests);
  });
}

void Network::Draw(StepSampler& sampler, int32_t module, Tensor hidden,
                   std::span<const int32_t> rows, std::span<const DrawRequest> requests,
                   int32_t num_tokens, std::span<int32_t> tokens) {
  Sample(sampler, module, hidden, rows, [&](const Context& context, const HeadRows& head_rows) {
    sampler.Draw(context, head_rows, requests, num_tokens, tokens);
  });
}

void Network::Score(StepSampler& sampler, Tensor hidden, std::span<const int32_t> rows,
                    std::span<const ScoreRequest> requests) {
  Sample(sampler, kTarget, hidden, rows, [&](const Context& context, const HeadRows& head_rows) {
    sampler.Score(context, head_rows, requests);
  });
}

std::span<const LayerTap> Network::FillTaps(const Context& context, std::span<const LayerTap> taps,
                                            int32_t layer, Tensor x) {
  for (; !taps.empty() && taps.front().layer == layer; taps = taps.subspan(1)) {
    context.ops.Copy(context, x, taps.front().out);
  }
  return taps;
}

}  // namespace outrider
