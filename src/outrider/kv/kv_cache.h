// The memory of the paged cache: pages of bytes, and where the layers of a group lie in a page.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/kernels/kernel_table.h"
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

/// [pages][layers of the group][entries per block][width] float32 or bfloat16: a page holds one
/// block of all layers of one group. Memory is touched only where entries are written.
class KvCache {
 public:
  /// layers: by layer of the network. Layers of one group have one width.
  KvCache(CacheConfig config, std::vector<CacheLayerSpec> layers, DType dtype);

  LayerCache layer(int32_t index);
  const CacheConfig& config() const { return config_; }
  int32_t group_of(int32_t layer) const { return layers_.at(static_cast<size_t>(layer)).group; }
  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

 private:
  CacheConfig config_;
  std::vector<CacheLayerSpec> layers_;
  std::vector<int32_t> layer_in_group_;
  DType dtype_;
  int64_t page_elements_;
  Buffer buffer_;
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
