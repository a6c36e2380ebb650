// Host side that the bf16 MLA decode kernels share: their workspace, their blocks, the tensor map
// of queries.
#pragma once

#include <algorithm>
#include <atomic>

#include "outrider/kernels/cuda/hopper/tensor_map.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode_layout.cuh"

namespace outrider::cuda {

inline constexpr size_t kMlaAlign = 256;
// Partial results: at most this many 16-row units (32 KB each). A plan that needs more leaves tiles
// whole.
inline constexpr int kMaxMlaUnits = 8192;

inline MlaWorkspace CarveMlaWorkspace(const MlaDecodeLimits& limits, void* memory) {
  // Splits of 128 keys up to 128 k are the most that a choice of splits can ask for in practice;
  // the plan's items are bounded by tiles plus partial results.
  const size_t tiles = static_cast<size_t>(limits.max_tokens) * limits.heads / kMlaLeastTileRows +
                       limits.max_requests + 1;
  const size_t max_splits = static_cast<size_t>(limits.max_seq_len) / 128 + 1;
  const size_t rows = static_cast<size_t>(limits.max_tokens) * limits.heads;
  const size_t units =
      std::min<size_t>(kMaxMlaUnits, (rows / kMlaUnitRows + limits.max_requests + 1) * max_splits);
  const size_t items = tiles + units + 2 * kMlaMaxBlocks;  // blocks look past the end
  MlaWorkspace workspace;
  uint8_t* base = static_cast<uint8_t*>(memory);
  size_t offset = 0;
  auto take = [&](size_t bytes) {
    uint8_t* at = base == nullptr ? nullptr : base + offset;
    offset += (bytes + kMlaAlign - 1) / kMlaAlign * kMlaAlign;
    return at;
  };
  workspace.counters = reinterpret_cast<MlaCounters*>(take(sizeof(MlaCounters)));
  workspace.items = reinterpret_cast<MlaItem*>(take(items * sizeof(MlaItem)));
  workspace.fold_tiles = reinterpret_cast<MlaFoldTile*>(take(tiles * sizeof(MlaFoldTile)));
  workspace.tile_plans = reinterpret_cast<MlaTilePlan*>(take(tiles * sizeof(MlaTilePlan)));
  workspace.partial_stats = reinterpret_cast<float2*>(take(units * kMlaUnitRows * sizeof(float2)));
  workspace.partial_outputs =
      reinterpret_cast<float*>(take(units * kMlaUnitRows * kMlaValueDim * sizeof(float)));
  workspace.num_units = static_cast<int>(units);
  workspace.bytes = offset;
  return workspace;
}

inline std::atomic<int> mla_sharers = 1;  // see ShareMlaBlocks

inline int MlaBlocks() {
  static const int blocks = [] {
    int device = 0;
    int count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return std::min(count, kMlaMaxBlocks);
  }();
  return std::max(blocks / mla_sharers.load(std::memory_order_relaxed), 1);
}

/// Queries [rows, 576] as {64 columns, rows, 9 column groups, 1}: a box of 8 rows begins at any
/// row, since a request's first row is a multiple of the head count only. Rows past the end read
/// zeros.
inline bool EncodeMlaQueryMap(CUtensorMap* map, const void* q, uint64_t rows) {
  return EncodeBf16Map(map, q, {64, rows, kMlaKeyDim / 64, 1},
                       {kMlaKeyDim * 2, 128, rows * kMlaKeyDim * 2}, {64, 8, 9, 1});
}

/// Raises a kernel's shared memory to `bytes`, on the current device.
template <typename Kernel>
cudaError_t AllowShared(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

}  // namespace outrider::cuda
