// What a network keeps in the KV cache, and how its groups fill the pages.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kv/cache_group.h"

namespace outrider {

/// What one layer keeps per entry: `width` numbers, in the pages of a group. An entry stands for
/// `ratio` tokens.
struct CacheLayerSpec {
  int32_t group = 0;
  int32_t width = 0;
  int32_t ratio = 1;
  bool float32 = false;  // whatever the type of the cache is

  bool operator==(const CacheLayerSpec&) const = default;
};

/// What a network keeps in the cache.
struct NetworkCache {
  std::vector<CacheGroupSpec> groups;  // names, kinds and windows
  std::vector<CacheLayerSpec> layers;  // the target's, then those of the modules
};

/// The type of a layer's numbers in a cache of `dtype`.
DType LayerDType(const CacheLayerSpec& layer, DType dtype);

/// Bytes of a layer's entries for `tokens` tokens, a multiple of its ratio: whole multiples of 4.
int64_t LayerBytes(const CacheLayerSpec& layer, DType dtype, int32_t tokens);

/// Fills the units and numbers of layers of the groups from what the layers keep.
void SizeGroups(std::vector<CacheGroupSpec>& groups, const std::vector<CacheLayerSpec>& layers,
                DType dtype);

/// Tokens between places where a request can resume, at most, unless blocks are longer than that.
inline constexpr int32_t kMostTokensPerResume = 256;

/// Gives every group, sized as SizeGroups does, its tokens per block, so that blocks fill pages of
/// one size. The group of full history fills them exactly, as it grows with a request: with
/// `tokens` tokens or, where windows take more bytes per token, up to kMostTokensPerResume. Windows
/// get what fits in such a page, parts or multiples of that number.
void ChooseBlockSizes(std::vector<CacheGroupSpec>& groups, int32_t tokens);

/// A network's groups over `num_pages` pages, sized, with the blocks of ChooseBlockSizes.
CacheConfig MakeCacheConfig(const NetworkCache& network, DType dtype, int32_t tokens,
                            int32_t num_pages);

/// Bytes that one token takes over all layers, while it is in every window.
int64_t BytesPerToken(const std::vector<CacheGroupSpec>& groups);

}  // namespace outrider
