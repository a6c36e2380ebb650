// Cache groups of random kinds, for property tests.
#pragma once

#include <rapidcheck.h>

#include "outrider/kv/cache_group.h"

namespace outrider {

/// One to three groups over a pool that one request of max_model_len tokens fits into.
inline CacheConfig RandomCacheGroups(int32_t max_model_len, int32_t most_rows,
                                     int32_t rerun_tokens) {
  CacheConfig cache{.rerun_tokens = rerun_tokens};
  const int32_t tokens = *rc::gen::inRange(1, 6);
  const int32_t num_groups = *rc::gen::element(1, 1, 2, 3);
  for (int32_t g = 0; g < num_groups; ++g) {
    CacheGroupSpec spec{.tokens_per_block = tokens * (g == 0 ? 1 : *rc::gen::element(1, 2, 4))};
    if (g > 0 && *rc::gen::arbitrary<bool>()) {
      spec.kind = CacheGroupKind::kSlidingWindow;
      spec.window = *rc::gen::inRange(1, 20);
    }
    cache.groups.push_back(spec);
  }
  // Either kind may be alone, and come first.
  if (*rc::gen::inRange(0, 4) == 0) std::swap(cache.groups.front(), cache.groups.back());
  cache.num_pages =
      static_cast<int32_t>(cache.MostPages(max_model_len, most_rows)) + *rc::gen::inRange(0, 20);
  return cache;
}

}  // namespace outrider
