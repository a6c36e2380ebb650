#include "outrider/ops/kv_cache.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/ops/ops.h"

namespace outrider {

KvCache::KvCache(const Device& device, CacheConfig config, std::vector<CacheLayerSpec> layers,
                 DType dtype)
    : config_(std::move(config)), layers_(std::move(layers)), dtype_(dtype) {
  OUTRIDER_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  SizeGroups(config_.groups, layers_, dtype);
  std::vector<int32_t> next(config_.groups.size(), 0);
  for (const CacheLayerSpec& layer : layers_) {
    layer_in_group_.push_back(next.at(static_cast<size_t>(layer.group))++);
  }
  const int64_t page_bytes = config_.PageBytes();
  page_elements_ = page_bytes / static_cast<int64_t>(DTypeSize(dtype));
  memory_ = device.ops.Allocate(static_cast<size_t>(page_bytes * config_.num_pages));
}

LayerCache KvCache::layer(int32_t index) {
  const CacheLayerSpec& layer = layers_.at(static_cast<size_t>(index));
  const int32_t entries = config_.groups[static_cast<size_t>(layer.group)].entries_per_block();
  const int64_t offset = int64_t{layer_in_group_[static_cast<size_t>(index)]} * entries *
                         layer.width * static_cast<int64_t>(DTypeSize(dtype_));
  return {.data = memory_.data() + offset,
          .dtype = dtype_,
          .block_size = entries,
          .width = layer.width,
          .block_stride = page_elements_,
          .group = layer.group};
}

}  // namespace outrider
