#include "outrider/networks/network.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/networks/block_draft_model.h"

namespace outrider {

std::unique_ptr<BlockDraftModel> Network::MakeBlockDraftModel() { return nullptr; }

CacheShape CacheShapeOf(const MlaSpec& a) {
  return {.heads = a.heads, .latent = a.latent, .nope = a.nope, .rope = a.rope, .value = a.value};
}

namespace {

/// One layer of the cache, and how long its entries live: for `window` tokens, or 0: for ever.
struct CacheLayerKind {
  int64_t window = 0;
  int64_t width = 0;
  int64_t ratio = 1;
  CacheUse use = CacheUse::kEntries;
  int64_t rope = 0;
  std::string what = {};
};

CacheGroupSpec GroupOf(int64_t window) {
  if (window == 0) return {.name = "full history"};
  return {.name = fmt::format("last {} tokens", window),
          .kind = CacheGroupKind::kSlidingWindow,
          .window = static_cast<int32_t>(window)};
}

/// The entries that a compressor leaves, and the rows that it pools them from.
void AddCompressor(const CompressedSpec& a, CacheUse use, int64_t rope,
                   std::vector<CacheLayerKind>& kinds) {
  const bool entries = use == CacheUse::kEntries;
  const int64_t width = entries ? a.head_dim : a.index_dim;
  const std::string what =
      fmt::format("{} of {} tokens", entries ? "entries" : "index keys", a.ratio);
  kinds.push_back({.width = width, .ratio = a.ratio, .use = use, .rope = rope, .what = what});
  // A value and a gate in every channel.
  const int64_t overlap = a.overlaps ? 2 : 1;
  kinds.push_back({.window = a.ratio * overlap,
                   .width = 2 * overlap * width,
                   .use = CacheUse::kState,
                   .what = "rows for " + what});
}

/// What a layer keeps in the cache, in the order of FirstCacheLayer.
std::vector<CacheLayerKind> CacheLayersOf(const LayerSpec& layer, KvCacheForm form) {
  const AttentionSpec& attention = layer.attention;
  std::vector<CacheLayerKind> kinds;
  if (std::holds_alternative<KdaSpec>(attention)) return kinds;  // a running state, no entries
  if (const auto* mla = std::get_if<MlaSpec>(&attention)) {
    // Rows that choose what they read have one form.
    const bool sparse = mla->indexer.has_value();
    const int64_t width = sparse ? mla->latent + mla->rope : CacheWidth(form, CacheShapeOf(*mla));
    kinds.push_back({.width = width, .use = CacheUse::kPlain, .what = sparse ? "entries" : ""});
    if (sparse) {
      kinds.push_back(
          {.width = mla->indexer->dim, .use = CacheUse::kTokenKeys, .what = "index keys"});
    }
  } else if (const auto* gqa = std::get_if<GqaSpec>(&attention)) {
    kinds.push_back({.window = gqa->window,
                     .width = 2 * gqa->kv_heads * gqa->head_dim,
                     .use = CacheUse::kPlain});
  } else {
    const auto& a = std::get<CompressedSpec>(attention);
    const int64_t rope = layer.rotary.dims;
    kinds.push_back({.window = a.window, .width = a.head_dim, .rope = rope, .what = "rows"});
    if (a.ratio > 0) AddCompressor(a, CacheUse::kEntries, rope, kinds);
    if (a.index_heads > 0) AddCompressor(a, CacheUse::kIndexKeys, rope, kinds);
  }
  return kinds;
}

}  // namespace

void AddCacheLayers(const LayerSpec& layer, KvCacheForm form, NetworkCache* cache) {
  for (const CacheLayerKind& kind : CacheLayersOf(layer, form)) {
    const auto group = std::ranges::find(cache->groups, static_cast<int32_t>(kind.window),
                                         &CacheGroupSpec::window);
    const auto index = static_cast<int32_t>(group - cache->groups.begin());
    if (group == cache->groups.end()) cache->groups.push_back(GroupOf(kind.window));
    cache->layers.push_back({.group = index,
                             .width = static_cast<int32_t>(kind.width),
                             .ratio = static_cast<int32_t>(kind.ratio),
                             .use = kind.use,
                             .rope = static_cast<int32_t>(kind.rope),
                             .what = kind.what});
  }
}

NetworkCache NetworkCacheOf(const ModelConfig& config, int32_t num_modules, KvCacheForm form) {
  NetworkCache cache;
  for (int64_t i = 0; i < config.num_hidden_layers() + num_modules; ++i) {
    AddCacheLayers(config.layer(i), form, &cache);
    if (const auto* kda = std::get_if<KdaSpec>(&config.layer(i).attention)) {
      const int32_t heads = cache.state.heads + static_cast<int32_t>(kda->heads);
      cache.state = {.heads = heads,
                     .head_dim = static_cast<int32_t>(kda->head_dim),
                     .conv = static_cast<int32_t>(kda->conv)};
    }
  }
  return cache;
}

RoutedShape RoutedShapeOf(const ModelConfig& config) {
  RoutedShape shape = {.layers = config.num_hidden_layers()};
  for (const LayerSpec& layer : config.layers) {
    if (const MoeSpec* moe = layer.moe()) shape.top_k = std::max(shape.top_k, moe->router.top_k);
  }
  return shape;
}

int32_t FirstCacheLayer(const ModelConfig& config, int64_t index) {
  int32_t first = 0;
  for (int64_t i = 0; i < index; ++i) {
    // The form changes widths only.
    first += static_cast<int32_t>(CacheLayersOf(config.layer(i), KvCacheForm::kLatent).size());
  }
  return first;
}

Network::Network(ModelConfig config, NetworkOptions options, int32_t num_modules)
    : config_(std::move(config)),
      options_(std::move(options)),
      num_modules_(num_modules),
      rows_{options_.attention, options_.device.ops.MakeStepInputs()},
      entry_rows_{options_.attention, options_.device.ops.MakeStepInputs()},
      arena_(options_.device.ops.MakeArena()),
      replayer_(options_.device.ops.MakeReplayer(MakeContext())) {}

const StepInputs& Network::Assign(LayoutInputs& rows, const BatchLayout& layout) {
  const Stopwatch watch(busy_seconds_);
  rows.plan.Assign(layout);
  rows.inputs->Assign(layout, rows.plan, RowCount::kExact);
  return *rows.inputs;
}

void Network::Forward(const BatchLayout& layout, KvCache& cache, Tensor hidden,
                      std::span<const LayerTap> taps) {
  Forward(Assign(rows_, layout), cache, hidden, taps);
}

void Network::Forward(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                      const TargetTaps& taps) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(*arena_);
  const std::span<const LayerTap> layers = taps.layers;
  OUTRIDER_CHECK(std::ranges::is_sorted(layers, {}, &LayerTap::layer));
  OUTRIDER_CHECK(layers.empty() ||
                 (layers.front().layer >= 0 && layers.back().layer < config_.num_hidden_layers()));
  OUTRIDER_CHECK(taps.experts.ids == nullptr || options_.device.ops.chosen_experts() != nullptr);
  RunKey key;
  key.Add(kTarget).Add(cache.layer(0).data).Add(hidden).Add(taps.experts.ids);
  for (const LayerTap& tap : layers) key.Add(tap.layer).Add(tap.out);
  const auto run = [&](const Context& context) { RunTarget(context, inputs, cache, hidden, taps); };
  replayer_->Run(MakeContext(), key, std::array{&inputs}, std::ref(run));
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
  const Scratch::Frame frame(*arena_);
  OUTRIDER_CHECK(m >= 0 && m < num_modules_);
  RunKey key;
  key.Add(m).Add(cache.layer(0).data).Add(previous).Add(hidden);
  const auto run = [&](const Context& context) {
    RunMtp(context, {m, entries, outputs, previous, hidden}, cache);
  };
  replayer_->Run(MakeContext(), key, std::array{&entries, &outputs}, std::ref(run));
}

void Network::Logits(int32_t module, Tensor hidden, std::span<const int32_t> rows, Tensor logits) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(*arena_);
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(rows.size()));
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  const Context context = MakeContext();
  const HeadRows input = RunBeforeHead(context, module, hidden, rows);
  context.ops.Head(context, input.x, input.rows, input.head, logits);
}

void Network::HeadInput(int32_t module, Tensor hidden, std::span<const int32_t> rows, Tensor out) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(*arena_);
  OUTRIDER_CHECK(module >= kTarget && module < num_modules_);
  const Context context = MakeContext();
  const HeadRows input = RunBeforeHead(context, module, hidden, rows);
  RowCopies copies;
  for (size_t i = 0; i < rows.size(); ++i) copies.Add(input.rows[i], static_cast<int64_t>(i));
  context.ops.CopyRows(context, input.x, out, copies);
}

template <typename Run>
void Network::Sample(const StepSampler& sampler, int32_t module, Tensor hidden,
                     std::span<const int32_t> rows, Run run) {
  const Scratch::Frame frame(*arena_);
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

std::optional<Ticket> Network::LaunchVerify(StepSampler& sampler, Tensor hidden,
                                            std::span<const int32_t> rows,
                                            std::span<const VerifyRequest> requests) {
  std::optional<Ticket> ticket;
  Sample(sampler, kTarget, hidden, rows, [&](const Context& context, const HeadRows& head_rows) {
    ticket = sampler.Launch(context, head_rows, requests);
  });
  return ticket;
}

void Network::Draw(StepSampler& sampler, int32_t module, Tensor hidden,
                   std::span<const int32_t> rows, std::span<const DrawRequest> requests,
                   const DraftTokens& among, std::span<TokenRef> tokens) {
  Sample(sampler, module, hidden, rows, [&](const Context& context, const HeadRows& head_rows) {
    sampler.Draw(context, head_rows, requests, among, tokens);
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
