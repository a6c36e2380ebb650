// The part of an EnginePlan that divides the memory of the KV cache.
#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/engine/engine_plan.h"

namespace outrider {

MemoryReport EnginePlan::Memory(const NetworkWeightSizes& sizes) const {
  MemoryReport memory;
  memory.weights = sizes.target;
  memory.mtp_weights = sizes.modules;
  const CacheConfig& cache = scheduler_.cache;
  memory.kv_bytes_per_token = BytesPerToken(cache.groups);
  memory.kv_tokens = cache.MostTokens(cache.num_pages, MostStepTokens());
  memory.kv_page_bytes = cache.PageBytes();
  memory.kv_pages = cache.num_pages;
  memory.kv_cache_bytes = memory.kv_page_bytes * memory.kv_pages;
  memory.kept_row_bytes = KeptBytesPerPage() * memory.kv_pages;
  for (const CacheGroupSpec& group : cache.groups) {
    const CacheConfig alone{.groups = {group}, .num_pages = 1, .rerun_tokens = cache.rerun_tokens};
    memory.kv_groups.push_back(
        {.group = group,
         .bytes_per_token = BytesPerToken(alone.groups),
         .pages_per_request = alone.MostPages(scheduler_.max_model_len, MostStepTokens())});
  }
  return memory;
}

void EnginePlan::PlanCacheGroups() {
  NetworkCache network = NetworkCacheOf(config_, modules_used_, form_);
  scheduler_.cache = MakeCacheConfig(network, kv_dtype_, options_.block_size, /*num_pages=*/0);
  scheduler_.cache.rerun_tokens = modules_used_;  // at most, see LoadEngine
  cache_layers_ = std::move(network.layers);
}

bool EnginePlan::ModulesHaveWindows() const {
  const CacheLayerSpec& last = cache_layers_.back();
  return modules_used_ > 0 && scheduler_.cache.groups[static_cast<size_t>(last.group)].kind ==
                                  CacheGroupKind::kSlidingWindow;
}

KeptRows EnginePlan::kept_rows() const {
  return options_.speculation.DraftLengthVaries() && !ModulesHaveWindows() ? KeptRows::kAll
                                                                           : KeptRows::kLast;
}

int64_t EnginePlan::KeptBytesPerPage() const {
  if (modules_used_ == 0 || kept_rows() == KeptRows::kLast) return 0;
  const auto group = static_cast<size_t>(cache_layers_.back().group);
  return TargetHiddenRows::BytesPerToken(config_.hidden_size) *
         scheduler_.cache.groups[group].tokens_per_block;
}

int32_t EnginePlan::MostStepTokens() const {
  const int32_t rows = std::min(options_.max_num_batched_tokens, CacheConfig::kMostTokens);
  return std::max(rows, 1 + k_) + 1 + k_;
}

void EnginePlan::PlanCache() {
  CacheConfig& cache = scheduler_.cache;
  const int64_t page_bytes = cache.PageBytes() + KeptBytesPerPage();
  const int64_t budget_pages =
      std::min<int64_t>(options_.kv_cache_memory_bytes / page_bytes, INT32_MAX);
  const int64_t trained = config_.max_position_embeddings;
  if (options_.max_model_len && *options_.max_model_len > trained) {
    throw InvalidArgument("--max-model-len is {}, but the model was made for {} positions",
                          *options_.max_model_len, trained);
  }
  const auto wanted = static_cast<int32_t>(std::min<int64_t>(
      options_.max_model_len.value_or(static_cast<int32_t>(trained)), CacheConfig::kMostTokens));
  const int64_t holds = cache.MostTokens(budget_pages, MostStepTokens());
  if (holds < 2 || (options_.max_model_len && holds < wanted)) {
    throw InvalidArgument("--kv-cache-memory-bytes {} holds {} tokens: a context of {} needs {}",
                          options_.kv_cache_memory_bytes, holds, wanted,
                          cache.MostPages(wanted, MostStepTokens()) * page_bytes);
  }
  const auto length = static_cast<int32_t>(std::min<int64_t>(wanted, holds));
  if (length < 2) throw InvalidArgument("--max-model-len is {}: it must be at least 2", length);
  const int64_t useful = cache.MostPages(length, MostStepTokens()) * options_.max_num_seqs;
  cache.num_pages = static_cast<int32_t>(std::min(budget_pages, useful));
  scheduler_.max_num_seqs = options_.max_num_seqs;
  scheduler_.max_num_batched_tokens = options_.max_num_batched_tokens;
  scheduler_.max_model_len = length;
  scheduler_.exact_prefix = options_.exact_prefix;
  Decide("context", fmt::format("{} tokens", length),
         length < wanted
             ? "shrunk to what the KV cache holds"
             : (options_.max_model_len ? "--max-model-len" : "max_position_embeddings"));
  DescribeCache(budget_pages < useful ? "--kv-cache-memory-bytes"
                                      : "as much as --max-num-seqs requests can use");
  Decide("prefix caching",
         options_.enable_prefix_caching ? (options_.exact_prefix ? "prompts only" : "on") : "off",
         options_.enable_prefix_caching
             ? (options_.exact_prefix ? "--exact-prefix"
                                      : "prompts reuse the blocks of earlier prompts and answers")
             : "--no-enable-prefix-caching");
}

void EnginePlan::DescribeCache(std::string why) {
  const CacheConfig& cache = scheduler_.cache;
  const int64_t kept = KeptBytesPerPage();
  Decide("KV cache",
         fmt::format("{} pages of {} bytes, {}, {} bytes per token over {} layers{}",
                     cache.num_pages, cache.PageBytes(), DTypeName(kv_dtype_),
                     BytesPerToken(cache.groups), cache_layers_.size(),
                     kept == 0 ? "" : fmt::format(", and {} for kept hidden rows per page", kept)),
         std::move(why));
  for (const CacheGroupSpec& group : cache.groups) {
    const bool window = group.kind == CacheGroupKind::kSlidingWindow;
    Decide("cache group",
           fmt::format("{}: {} layers, {} tokens per page", group.name, group.layers,
                       group.tokens_per_block),
           window ? fmt::format("rows read the last {} tokens; pages before them are freed while "
                                "the request runs",
                                group.window)
                  : "rows read all tokens before them");
  }
}

}  // namespace outrider
