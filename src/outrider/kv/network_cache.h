// What a network keeps in the KV cache, and how its groups fill the pages.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kv/cache_group.h"

namespace outrider {

/// What one layer keeps per entry: `width` numbers, in the pages of a group.
struct CacheLayerSpec {
  int32_t group = 0;
  int32_t width = 0;

  bool operator==(const CacheLayerSpec&) const = default;
};

/// What a network keeps in the cache.
struct NetworkCache {
  std::vector<CacheGroupSpec> groups;  // names, kinds, windows and ratios
  std::vector<CacheLayerSpec> layers;  // the target's, then one per module
};

/// Fills bytes_per_entry and layers of the groups from what the layers keep.
void SizeGroups(std::vector<CacheGroupSpec>& groups, const std::vector<CacheLayerSpec>& layers,
                DType dtype);

/// Gives every group, sized as SizeGroups does, the tokens per block that fill pages of one size as
/// well as whole multiples of `tokens` can: `tokens` itself where a token takes the most bytes.
void ChooseBlockSizes(std::vector<CacheGroupSpec>& groups, int32_t tokens);

/// A network's groups over `num_pages` pages, sized, with the blocks of ChooseBlockSizes.
CacheConfig MakeCacheConfig(const NetworkCache& network, DType dtype, int32_t tokens,
                            int32_t num_pages);

/// Bytes that one token takes over all layers, while it is in every window.
int64_t BytesPerToken(const std::vector<CacheGroupSpec>& groups);

}  // namespace outrider
