#include "outrider/engine/plan/memory_report.h"

#include <algorithm>

namespace outrider {

namespace {

std::vector<CachePartReport> PartsOf(const EnginePlan& plan, int32_t group) {
  std::vector<CachePartReport> parts;
  for (const CacheLayerSpec& layer : plan.cache.layers) {
    if (layer.group != group || layer.what.empty()) continue;
    auto part = std::ranges::find(parts, layer.what, &CachePartReport::what);
    if (part == parts.end()) part = parts.insert(part, {.what = layer.what});
    ++part->layers;
    part->bytes_per_token +=
        static_cast<double>(EntryBytes(layer, plan.numbers.cache())) / layer.ratio;
  }
  return parts;
}

}  // namespace

MemoryReport ReportMemory(const EnginePlan& plan, const SchedulerConfig& scheduler,
                          const MeasuredWeights& weights, const std::optional<GpuBudget>& gpu) {
  MemoryReport memory;
  memory.weights = weights.model.target;
  memory.mtp_weights = weights.model.modules;
  memory.gpu = gpu;
  memory.drafter_weights = weights.drafter.modules;
  memory.weight_groups = weights.model.groups;
  memory.weight_groups.insert(memory.weight_groups.end(), weights.drafter.groups.begin(),
                              weights.drafter.groups.end());
  const CacheConfig& cache = scheduler.cache;
  const int32_t step_tokens = plan.MostStepTokens();
  memory.kv_bytes_per_token = HistoryBytesPerToken(cache.groups);
  memory.kv_tokens = cache.MostTokens(cache.num_pages, step_tokens);
  memory.kv_page_bytes = cache.PageBytes();
  memory.kv_pages = cache.num_pages;
  memory.kv_cache_bytes = memory.kv_page_bytes * memory.kv_pages;
  memory.cache_ranks = plan.cache_ranks;
  memory.kept_row_bytes = plan.cache.kept_bytes_per_page * memory.kv_pages;
  if (plan.ranks > 1) {
    for (const int64_t bytes : weights.ranks) {
      memory.ranks.push_back({bytes, memory.kv_cache_bytes + memory.kept_row_bytes});
    }
  }
  for (const CacheGroupSpec& group : cache.groups) {
    const auto index = static_cast<int32_t>(memory.kv_groups.size());
    const CacheConfig alone{.groups = {group}, .num_pages = 1, .rerun_tokens = cache.rerun_tokens};
    memory.kv_groups.push_back(
        {.group = group,
         .parts = PartsOf(plan, index),
         .bytes_per_token = BytesPerToken(alone.groups),
         .pages_per_request = alone.MostPages(scheduler.max_model_len, step_tokens),
         .pages_generating = PagesWhileGenerating(plan, group, scheduler.max_model_len)});
  }
  memory.request = PagesOfRequest(plan, scheduler.max_model_len);
  if (cache.state.heads > 0) {
    memory.state = {.spec = cache.state,
                    .state_pages = cache.StatePages(),
                    .row_pages = cache.StateRowPages(),
                    .tokens_per_checkpoint = cache.TokensPerCheckpoint()};
  }
  return memory;
}

}  // namespace outrider
