// Where an engine's memory goes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "outrider/engine/plan/cache_plan.h"
#include "outrider/engine/plan/engine_plan.h"
#include "outrider/networks/network_loader.h"

namespace outrider {

/// One of the things that layers of a cache group keep.
struct CachePartReport {
  std::string what;
  int32_t layers = 0;
  double bytes_per_token = 0;
};

/// What a cache group takes of the pages that all groups share.
struct CacheGroupReport {
  CacheGroupSpec group;
  std::vector<CachePartReport> parts;  // empty where layers keep one thing
  int64_t bytes_per_token = 0;         // in a window: while the token is in it
  int64_t pages_per_request = 0;       // of a request of the greatest length, at most
  int64_t pages_generating = 0;        // of them, while it generates
};

/// What linear attention keeps of a request in the pages of the cache.
struct RunningStateReport {
  RunningStateSpec spec;
  int64_t state_pages = 0;  // of a state: of a request that runs, and of a checkpoint
  int64_t row_pages = 0;    // of a request that runs
  int64_t tokens_per_checkpoint = 0;
};

/// What one of several ranks keeps, in bytes.
struct RankMemory {
  int64_t weights = 0;  // of target, modules and drafter
  int64_t cache = 0;    // and kept rows
};

/// Where the memory went, in bytes, and what the cache holds; of the first rank where there are
/// several.
struct MemoryReport {
  WeightSizes weights;                     // target, as computed with
  WeightSizes mtp_weights;                 // MTP modules
  WeightSizes drafter_weights;             // of a checkpoint of its own
  std::vector<WeightGroup> weight_groups;  // of target and modules, and of a drafter
  int64_t kv_cache_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // of history; windows and states are in `request`
  int64_t kv_tokens = 0;           // that the cache holds, of one request if there are windows
  int64_t kv_page_bytes = 0;
  int64_t kv_pages = 0;
  std::vector<CacheGroupReport> kv_groups;
  std::optional<RunningStateReport> state;  // of linear attention
  RequestPages request;                     // of the greatest length
  int64_t kept_row_bytes = 0;     // the target's hidden rows kept for modules that lag, at most
  std::vector<RankMemory> ranks;  // empty: there is one
  int32_t cache_ranks = 1;        // that each have such a cache, of their own requests
  std::optional<GpuBudget> gpu;
};

/// Sizes in memory of the weights.
struct MeasuredWeights {
  NetworkWeightSizes model;    // target and modules, of the first rank
  NetworkWeightSizes drafter;  // of a checkpoint of its own: modules and no target
  std::vector<int64_t> ranks;  // bytes of each, of all weights

  int64_t first_rank() const { return ranks.front(); }
  /// Parts of several ranks may differ by blocks of columns.
  int64_t largest_rank() const { return std::ranges::max(ranks); }
  int64_t all_ranks() const { return std::accumulate(ranks.begin(), ranks.end(), int64_t{0}); }
};

/// gpu: where the cache fills a GPU.
MemoryReport ReportMemory(const EnginePlan& plan, const SchedulerConfig& scheduler,
                          const MeasuredWeights& weights, const std::optional<GpuBudget>& gpu);

}  // namespace outrider
