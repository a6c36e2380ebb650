#include "outrider/kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

KvCache::KvCache(CacheConfig config, std::vector<CacheLayerSpec> layers, DType dtype)
    : config_(std::move(config)), layers_(std::move(layers)), dtype_(dtype) {
  OUTRIDER_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  SizeGroups(config_.groups, layers_, dtype);
  std::vector<int32_t> next(config_.groups.size(), 0);
  for (const CacheLayerSpec& layer : layers_) {
    layer_in_group_.push_back(next.at(static_cast<size_t>(layer.group))++);
  }
  const int64_t page_bytes = config_.PageBytes();
  page_elements_ = page_bytes / static_cast<int64_t>(DTypeSize(dtype));
  buffer_ = Buffer(static_cast<size_t>(page_bytes * config_.num_pages));
}

LayerCache KvCache::layer(int32_t index) {
  const CacheLayerSpec& layer = layers_.at(static_cast<size_t>(index));
  const int32_t entries = config_.groups[static_cast<size_t>(layer.group)].entries_per_block();
  const int64_t offset = int64_t{layer_in_group_[static_cast<size_t>(index)]} * entries *
                         layer.width * static_cast<int64_t>(DTypeSize(dtype_));
  return {.data = buffer_.data() + offset,
          .dtype = dtype_,
          .block_size = entries,
          .width = layer.width,
          .block_stride = page_elements_,
          .group = layer.group};
}

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
