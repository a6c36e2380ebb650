// What an engine keeps in the pages of its KV cache. How many pages there are is planned later
// (cache_plan.h).
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/draft/drafter.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/draft_plan.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/kv/cache_form.h"
#include "outrider/kv/network_cache.h"

namespace outrider {

/// What one rank's cache holds.
struct CacheLayout {
  CacheConfig config;                  // num_pages: 0
  std::vector<CacheLayerSpec> layers;  // the target's, then those of the modules that are used
  KeptRows kept_rows = KeptRows::kLast;
  int64_t kept_bytes_per_page = 0;  // of the target's hidden rows that are kept, at most
};

/// numbers: of the cache; device: whose activation_type hidden rows have.
CacheLayout PlanCacheLayout(const EngineOptions& options, const ModelFacts& model,
                            const DraftPlan& drafts, KvCacheForm form, const CacheNumbers& numbers,
                            const DeviceFacts& device);

/// Describes the state of linear attention; nothing without it. Throws Error for more drafts than
/// its kept rows have room for.
void DescribeRunningState(const EngineOptions& options, const CacheConfig& cache, int32_t k,
                          Decisions& decisions);

}  // namespace outrider
