// Numbers and caches as kernels' parameters want them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "outrider/kernels/cuda/sparse/paged_entries.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/ops/cuda/cuda_step_inputs.h"

namespace outrider::cuda {

inline int Int(int64_t value) { return static_cast<int>(value); }

/// The power of two that is not below `value`; `least` at least.
inline int PowerOfTwo(int64_t value, int least) {
  return std::max(least, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(value))));
}

/// From a block of the layer to the next.
inline int64_t BlockBytes(const LayerCache& cache) {
  return cache.block_stride * static_cast<int64_t>(DTypeSize(cache.dtype));
}

inline PagedEntries PagesOf(const LayerCache& cache, const DecodeRequests& requests) {
  return {.data = cache.data,
          .num_pages = cache.num_blocks,
          .page_size = cache.block_size,
          .page_stride = BlockBytes(cache),
          .block_table = requests.block_tables,
          .block_table_stride = requests.block_table_stride,
          .block_table_mask = requests.block_table_mask};
}

}  // namespace outrider::cuda
