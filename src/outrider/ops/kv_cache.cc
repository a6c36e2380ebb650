#include "outrider/ops/kv_cache.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/ops/ops.h"

namespace outrider {

KvCache::KvCache(const Device& device, CacheConfig config, std::vector<CacheLayerSpec> layers,
                 const CacheNumbers& numbers)
    : ops_(device.ops), config_(std::move(config)), layers_(std::move(layers)), numbers_(numbers) {
  OUTRIDER_CHECK(numbers.dtype == DType::kF32 || numbers.dtype == DType::kBF16 ||
                 numbers.dtype == DType::kF8E4M3);
  SizeGroups(config_.groups, layers_, numbers);
  std::vector<int64_t> next(config_.groups.size(), 0);
  for (const CacheLayerSpec& layer : layers_) {
    const auto group = static_cast<size_t>(layer.group);
    layer_offsets_.push_back(next.at(group));
    next[group] += LayerBytes(layer, numbers, config_.groups[group].tokens_per_block);
  }
  page_bytes_ = config_.PageBytes();
  RestoreMemory();
}

void KvCache::RestoreMemory() {
  memory_ = ops_.Allocate(static_cast<size_t>(page_bytes_ * config_.num_pages));
}

LayerCache KvCache::layer(int32_t index) {
  const CacheLayerSpec& layer = layers_.at(static_cast<size_t>(index));
  const DType dtype = LayerDType(layer, numbers_);
  // An entry is not `width` elements of a type then.
  const bool codes = HasGroupScales(layer, numbers_);
  return {
      .data = memory_.data() + layer_offsets_[static_cast<size_t>(index)],
      .dtype = dtype,
      .block_size = config_.groups[static_cast<size_t>(layer.group)].tokens_per_block / layer.ratio,
      .width = layer.width,
      .block_stride = codes ? page_bytes_ : page_bytes_ / static_cast<int64_t>(DTypeSize(dtype)),
      .group = layer.group,
      .num_blocks = config_.num_pages,
      .code_bytes = codes ? static_cast<int32_t>(EntryBytes(layer, numbers_)) : 0,
      .rope = layer.rope,
      .rotated = numbers_.rotated,
      .has_scales = HasEntryScales(layer, numbers_),
      .holds_rounded = HoldsRoundedNumbers(layer, numbers_)};
}

}  // namespace outrider
