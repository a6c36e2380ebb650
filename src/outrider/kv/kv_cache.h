// The tensors of the paged cache: one per layer, MTP layers after the target's.
#pragma once

#include <cstdint>

#include "outrider/base/buffer.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider {

/// [layers, blocks, block_size, width] float32 or bfloat16. A block number means the same page in
/// every layer. Memory is touched only where tokens are written.
class KvCache {
 public:
  KvCache(int32_t num_layers, int32_t num_blocks, int32_t block_size, int32_t width, DType dtype);

  LayerCache layer(int32_t index);
  int32_t block_size() const { return block_size_; }
  int32_t num_layers() const { return num_layers_; }
  int32_t num_blocks() const { return num_blocks_; }

  /// Bytes that one token takes over all layers.
  static int64_t BytesPerToken(int32_t num_layers, int32_t width, DType dtype);

 private:
  Buffer buffer_;
  int32_t num_layers_;
  int32_t num_blocks_;
  int32_t block_size_;
  int32_t width_;
  DType dtype_;
  int64_t layer_bytes_;
};

}  // namespace outrider
