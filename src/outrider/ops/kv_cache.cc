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
  std::vector<int64_t> next(config_.groups.size(), 0);
  for (const CacheLayerSpec& layer : layers_) {
    const auto group = static_cast<size_t>(layer.group);
    layer_offsets_.push_back(next.at(group));
    next[group] += LayerBytes(layer, dtype, config_.groups[group].tokens_per_block);
  }
  page_bytes_ = config_.PageBytes();
  memory_ = device.ops.Allocate(static_cast<size_t>(page_bytes_ * config_.num_pages));
}

LayerCache KvCache::layer(int32_t index) {
  const CacheLayerSpec& layer = layers_.at(static_cast<size_t>(index));
  const DType dtype = LayerDType(layer, dtype_);
  return {
      .data = memory_.data() + layer_offsets_[static_cast<size_t>(index)],
      .dtype = dtype,
      .block_size = config_.groups[static_cast<size_t>(layer.group)].tokens_per_block / layer.ratio,
      .width = layer.width,
      .block_stride = page_bytes_ / static_cast<int64_t>(DTypeSize(dtype)),
      .group = layer.group,
      .num_blocks = config_.num_pages};
}

}  // namespace outrider
