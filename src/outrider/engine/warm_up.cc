#include "outrider/engine/warm_up.h"

#include <algorithm>

#include "outrider/ops/kv_cache.h"

namespace outrider {

namespace {

// A device that makes keys of prompts anew makes those of some prompts together, of fewer than this
// many or of one prompt.
constexpr int32_t kPromptKeys = 32768;

/// A pass of requests that have `rows` rows each behind `context` tokens.
void Run(Network& network, KvCache& cache, Phase phase, int32_t requests, int32_t context,
         int32_t rows) {
  const std::vector<int32_t> tokens(static_cast<size_t>(rows), 0);
  std::vector<std::vector<int32_t>> tables;
  for (const CacheGroupSpec& group : cache.config().groups) {
    const int32_t blocks = (context + rows + group.tokens_per_block - 1) / group.tokens_per_block;
    tables.emplace_back(static_cast<size_t>(blocks), 0);
  }
  std::vector<RequestWork> work;
  work.reserve(static_cast<size_t>(requests));
  for (int32_t i = 0; i < requests; ++i) {
    work.push_back({.slot = i,
                    .phase = phase,
                    .context_length = context,
                    .tokens = tokens,
                    .draft_tokens = {},
                    .samples = false,
                    .block_tables = tables});
  }
  BatchLayout layout(cache.config().groups);
  layout.Assign(work);
  const auto hidden = network.device().ops.MakeRows(layout.num_rows(), network.output_width());
  network.Forward(layout, cache, hidden->rows());
}

}  // namespace

void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  CacheConfig one_page = scheduler.cache;
  one_page.num_pages = 1;
  KvCache cache(network.device(), one_page, layers, numbers);
  const int32_t longest = scheduler.max_model_len;
  const auto requests = [&](int32_t most) { return std::clamp(most, 1, scheduler.max_num_seqs); };
  const int32_t rows = std::min(scheduler.max_num_batched_tokens, longest);
  Run(network, cache, Phase::kPromptChunk, requests(scheduler.max_num_batched_tokens / rows), 0,
      rows);
  const int32_t last = std::min(rows, 16);
  Run(network, cache, Phase::kPromptChunk,
      requests(std::min(kPromptKeys / longest, scheduler.max_num_batched_tokens / last)),
      longest - last, last);
  const int32_t verified = std::min(1 + drafts, longest);
  Run(network, cache, Phase::kDecode, scheduler.max_num_seqs, longest - verified, verified);
}

}  // namespace outrider
