// Numbers of the cache entries that rows choose from (DeepSeek-V4, DeepSeek-V3.2, GLM-5): how they
// are stored, rounded if the cache is (CacheNumbers), and read back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/kv/layer_cache.h"

namespace outrider::cpu {

/// The slot of entry `index` of a request's table.
inline int64_t EntrySlot(const LayerCache& cache, const int32_t* block_table, int64_t index) {
  return int64_t{block_table[index / cache.block_size]} * cache.block_size +
         index % cache.block_size;
}

/// Whether entries are codes, which are read through LoadEntry's buffer.
inline bool HoldsCodes(const LayerCache& cache) {
  return cache.dtype == DType::kF8E4M3 || cache.dtype == DType::kF4E2M1;
}

/// The type in which LoadEntry gives the entries of a cache.
inline DType LoadedType(const LayerCache& cache) {
  return cache.dtype == DType::kF8E4M3 ? cache.rotated : cache.dtype;
}

/// Writes `values` [width] to a slot.
void StoreEntry(const LayerCache& cache, int64_t slot, const float* values);

/// The entry in a slot as numbers of LoadedType: where it is or, of codes, in `buffer`. Not of
/// index keys that are codes.
const std::byte* LoadEntry(const LayerCache& cache, int64_t slot, std::byte* buffer);

/// Any entry as float32: in the cache itself, or in `buffer` [width].
const float* LoadFloats(const LayerCache& cache, int64_t slot, float* buffer);

/// Rounds an indexer's query x [keys.width] as its keys are rounded, which are codes. The width is
/// a power of two.
void RoundIndexQuery(const LayerCache& keys, float* x);

}  // namespace outrider::cpu
