#include "outrider/kv/network_cache.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

void SizeGroups(std::vector<CacheGroupSpec>& groups, const std::vector<CacheLayerSpec>& layers,
                DType dtype) {
  for (CacheGroupSpec& group : groups) {
    group.layers = 0;
    group.bytes_per_entry = 0;
  }
  for (const CacheLayerSpec& layer : layers) {
    CacheGroupSpec& group = groups.at(static_cast<size_t>(layer.group));
    const int64_t bytes = layer.width * static_cast<int64_t>(DTypeSize(dtype));
    OUTRIDER_CHECK(group.layers == 0 || group.bytes_per_entry == bytes);
    group.bytes_per_entry = bytes;
    ++group.layers;
  }
}

void ChooseBlockSizes(std::vector<CacheGroupSpec>& groups, int32_t tokens) {
  const auto bytes = [](const CacheGroupSpec& group) {
    return group.bytes_per_entry * group.layers / group.ratio;
  };
  int64_t most = 0;
  for (const CacheGroupSpec& group : groups) most = std::max(most, bytes(group));
  for (CacheGroupSpec& group : groups) {
    const int64_t own = std::max<int64_t>(bytes(group), 1);
    group.tokens_per_block = static_cast<int32_t>(tokens * ((most + own / 2) / own));
  }
}

CacheConfig MakeCacheConfig(const NetworkCache& network, DType dtype, int32_t tokens,
                            int32_t num_pages) {
  CacheConfig config{.groups = network.groups, .num_pages = num_pages};
  SizeGroups(config.groups, network.layers, dtype);
  ChooseBlockSizes(config.groups, tokens);
  return config;
}

int64_t BytesPerToken(const std::vector<CacheGroupSpec>& groups) {
  int64_t bytes = 0;
  for (const CacheGroupSpec& group : groups) {
    bytes += group.bytes_per_block() / group.tokens_per_block;
  }
  return bytes;
}

}  // namespace outrider
