// The memory of the paged cache: pages of bytes, and where the layers of a group lie in a page.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/kv/network_cache.h"
#include "outrider/ops/context.h"

namespace outrider {

/// [pages][layers of the group][entries per block][width] float32 or bfloat16: a page holds one
/// block of all layers of one group. Memory is touched only where entries are written.
class KvCache {
 public:
  /// In the memory of `device`. layers: by layer of the network; those of one group have one width.
  /// Throws Error when the device has no such memory.
  KvCache(const Device& device, CacheConfig config, std::vector<CacheLayerSpec> layers,
          DType dtype);

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
  Buffer memory_;
};

}  // namespace outrider
