// The tensors of the paged latent cache in device memory: one per layer, MTP layers after the
// target's.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kernels/cuda/mla_decode.h"

namespace outrider::cuda {

/// [layers, blocks, block_size, 576], zero at first. A block number means the same page in every
/// layer.
class DeviceCache {
 public:
  /// block_size: 16, 32, 64 or 256 tokens. scale: of e4m3 entries, value = scale * e4m3.
  DeviceCache(int num_layers, int num_blocks, int block_size, MlaCacheType type,
              float scale = 1.0F);

  void* layer(int index) const;
  int num_layers() const { return num_layers_; }
  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  MlaCacheType type() const { return type_; }
  float scale() const { return scale_; }

 private:
  int num_layers_;
  int num_blocks_;
  int block_size_;
  MlaCacheType type_;
  float scale_;
  int64_t layer_bytes_;
  DeviceMemory memory_;
};

}  // namespace outrider::cuda
