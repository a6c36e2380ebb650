#include "outrider/kv/kv_cache.h"

#include "outrider/base/error.h"

namespace outrider {

KvCache::KvCache(int32_t num_layers, int32_t num_blocks, int32_t block_size, int32_t width,
                 DType dtype)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      block_size_(block_size),
      width_(width),
      dtype_(dtype),
      layer_bytes_(int64_t{num_blocks} * block_size * width *
                   static_cast<int64_t>(DTypeSize(dtype))) {
  OUTRIDER_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  buffer_ = Buffer(static_cast<size_t>(layer_bytes_ * num_layers));
}

LayerCache KvCache::layer(int32_t index) {
  OUTRIDER_CHECK(index >= 0 && index < num_layers_);
  return {buffer_.data() + layer_bytes_ * index, dtype_, block_size_, width_};
}

int64_t KvCache::BytesPerToken(int32_t num_layers, int32_t width, DType dtype) {
  return int64_t{num_layers} * width * static_cast<int64_t>(DTypeSize(dtype));
}

}  // namespace outrider
