// Where the entries of one layer lie in the memory of the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider {

/// The cache of one layer: for every block [block_size, width] elements, blocks block_stride
/// elements apart, in the memory of the device that runs the layer. A token's entry is one of
///   latent:   its normalised latent [L], its rotated key [R]; width = L + R;
///   per head: the key of every head [kv_heads * P], the rotated key that they share [R], the value
///             of every head [kv_heads * V]; width = kv_heads * (P + V) + R.
struct LayerCache {
  std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  int32_t block_size = 0;
  int32_t width = 0;
  int64_t block_stride = 0;
  int32_t group = 0;       // the cache group whose block tables and slots address it
  int32_t num_blocks = 0;  // that there are
  // In a rounded cache (CacheNumbers) dtype is kF8E4M3 or kF4E2M1, and an entry has code_bytes
  // bytes, which count as elements. 0, kF8E4M3: an entry is the codes of its numbers.
  //   kF8E4M3: the codes of its first width - rope numbers, its last `rope` numbers in the type
  //            `rotated`, the exponents e of the scales 2^(e - 127) of the groups of codes
  //   kF4E2M1: the codes, two to a byte with the even one in the lower half; the exponents
  int32_t code_bytes = 0;
  int32_t rope = 0;
  DType rotated = DType::kBF16;
  // kF8E4M3, code_bytes 0: behind the codes of a block's entries lie their scales, a float32 each.
  bool has_scales = false;
  // kBF16: entries are the numbers that the codes of a rounded cache would stand for; index keys
  // behind the transform, so that queries must go through it, too.
  bool holds_rounded = false;

  /// Bytes from `data` to the scale of the entry in `slot` (has_scales).
  int64_t ScaleOffset(int64_t slot) const {
    return slot / block_size * block_stride + int64_t{block_size} * width +
           slot % block_size * static_cast<int64_t>(sizeof(float));
  }

  /// Element offset of the entry in `slot` (= block * block_size + offset in the block).
  int64_t SlotOffset(int64_t slot) const {
    return slot / block_size * block_stride +
           slot % block_size * (code_bytes > 0 ? code_bytes : width);
  }
};

}  // namespace outrider
