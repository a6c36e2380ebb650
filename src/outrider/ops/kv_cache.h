// The memory of the paged cache: pages of bytes, and where the layers of a group lie in a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/kv/network_cache.h"
#include "outrider/kv/state_cache.h"
#include "outrider/ops/context.h"

namespace outrider {

/// [pages][layers of the group][entries per block][width]: a page holds one block of all layers of
/// one group. Memory is touched only where entries are written.
class KvCache {
 public:
  /// Takes memory of `device`. layers: by layer of the cache. Throws Error when the device has too
  /// little.
  KvCache(const Device& device, CacheConfig config, std::vector<CacheLayerSpec> layers,
          const CacheNumbers& numbers);

  LayerCache layer(int32_t index);

  /// A page's bytes, in the device's memory: one block of all layers of a group, or pieces of
  /// states.
  std::span<std::byte> page(int32_t index) {
    return {memory_.data() + index * page_bytes_, static_cast<size_t>(page_bytes_)};
  }
  int64_t page_bytes() const { return page_bytes_; }

  /// Gives the memory back; no layer is asked for until it is restored. Entries are lost.
  void FreeMemory() { memory_ = {}; }
  /// Takes memory again. Throws Error when the device has too little.
  void RestoreMemory();

  /// The states of linear attention.
  StateCache state() { return {memory_.data(), page_bytes_, config_.state}; }
  const CacheConfig& config() const { return config_; }
  const CacheNumbers& numbers() const { return numbers_; }
  int32_t group_of(int32_t layer) const { return layers_.at(static_cast<size_t>(layer)).group; }
  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

 private:
  const Ops& ops_;
  CacheConfig config_;
  std::vector<CacheLayerSpec> layers_;
  std::vector<int64_t> layer_offsets_;  // in a page, in bytes
  CacheNumbers numbers_;
  int64_t page_bytes_;
  Buffer memory_;
};

}  // namespace outrider
