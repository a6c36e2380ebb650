#include "outrider/networks/cuda/device_cache.h"

#include "outrider/base/error.h"

namespace outrider::cuda {

DeviceCache::DeviceCache(int num_layers, int num_blocks, int block_size, MlaCacheType type,
                         float scale)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      block_size_(block_size),
      type_(type),
      scale_(scale),
      layer_bytes_(int64_t{num_blocks} * block_size * kMlaKeyDim *
                   (type == MlaCacheType::kE4m3 ? 1 : 2)),
      memory_(static_cast<size_t>(num_layers * layer_bytes_), "the KV cache") {
  if (block_size != 16 && block_size != 32 && block_size != 64 && block_size != 256) {
    throw InvalidArgument("a KV cache with blocks of {} tokens: the GPU takes 16, 32, 64 or 256",
                          block_size);
  }
  CheckCuda(cudaMemset(memory_.data(), 0, memory_.bytes()), "clearing the KV cache");
}

void* DeviceCache::layer(int index) const {
  OUTRIDER_CHECK(index >= 0 && index < num_layers_, "layer {} of the cache", index);
  return memory_.As<std::byte>() + index * layer_bytes_;
}

}  // namespace outrider::cuda
