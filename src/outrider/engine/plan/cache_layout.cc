#include "outrider/engine/plan/cache_layout.h"

#include <utility>

#include "outrider/base/byte_size.h"
#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/draft/target_hidden_rows.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/networks/network.h"
#include "outrider/ops/cuda/hopper_support.h"

namespace outrider {

namespace {

/// With `tokens` a page, or more where pages of fewer would not hold a piece of a running state. A
/// GPU reads pages of few sizes: there it is the next one of these.
CacheConfig SizePages(const NetworkCache& network, const CacheNumbers& numbers, int32_t tokens,
                      DeviceKind device) {
  CacheConfig config = MakeCacheConfig(network, numbers, tokens, /*num_pages=*/0);
  if (device != DeviceKind::kCuda || config.state.heads == 0) return config;
  for (const int64_t size : cuda::kHopperPageTokens) {
    if (size < tokens) continue;
    config = MakeCacheConfig(network, numbers, static_cast<int32_t>(size), /*num_pages=*/0);
    if (config.groups.front().tokens_per_block == size) break;
  }
  return config;
}

}  // namespace

CacheLayout PlanCacheLayout(const EngineOptions& options, const ModelFacts& model,
                            const DraftPlan& drafts, KvCacheForm form, const CacheNumbers& numbers,
                            const DeviceFacts& device) {
  // That share the heads.
  const int32_t ranks = options.data_parallel_attention ? 1 : options.tensor_parallel_size;
  const ModelConfig config = OfOneRank(model.config, ranks);
  NetworkCache network =
      drafts.own_checkpoint
          ? Eagle3DraftModel::CacheNeeds(config, OfOneRank(model.drafter->config, ranks), form)
          : NetworkCacheOf(config, drafts.modules, form);
  CacheLayout layout;
  layout.config = SizePages(network, numbers, options.block_size, device.chosen.kind);
  layout.config.rerun_tokens = drafts.reach.rerun_tokens;
  layout.layers = std::move(network.layers);
  // Modules lag where fewer drafts than modules may be asked for; but not behind a window, whose
  // entries could not be computed later.
  const CacheGroupSpec& last =
      layout.config.groups[static_cast<size_t>(layout.layers.back().group)];
  const bool windows = drafts.HasModules() && last.kind == CacheGroupKind::kSlidingWindow;
  if (!options.speculation.DraftLengthVaries() || windows) return layout;
  layout.kept_rows = KeptRows::kAll;
  if (drafts.HasModules()) {
    const ModelConfig& drafter = drafts.own_checkpoint ? model.drafter->config : model.config;
    layout.kept_bytes_per_page =
        TargetHiddenRows::BytesPerToken(drafter.hidden_size, device.activation_type) *
        last.tokens_per_block;
  }
  return layout;
}

void DescribeRunningState(const EngineOptions& options, const CacheConfig& cache, int32_t k,
                          Decisions& decisions) {
  if (cache.state.heads == 0) return;
  if (k > kMostStateDrafts) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but {} has linear attention, which keeps rows for {} "
        "drafts: use 0 to {}",
        k, options.model, kMostStateDrafts, kMostStateDrafts);
  }
  decisions.push_back(
      {"running state",
       fmt::format("{} of a request, and {} of its last {} rows",
                   ByteSizeText(cache.state.StateBytes()), ByteSizeText(cache.state.RowBytes()),
                   kKeptStateRows),
       "linear attention, float32, in pages of the KV cache; drafts never write it"});
  if (!options.enable_prefix_caching) {
    decisions.push_back({"checkpoints", "none", "--no-enable-prefix-caching"});
    return;
  }
  decisions.push_back(
      {"checkpoints",
       fmt::format("{} each, every {} tokens of a prompt and near its end",
                   ByteSizeText(cache.state.StateBytes()), cache.TokensPerCheckpoint()),
       "where requests that begin alike may go on"});
}

}  // namespace outrider
