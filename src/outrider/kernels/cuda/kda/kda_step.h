// What a step's rows do to running states (kv/running_state.h), as the kernels of Kimi Delta
// Attention read it, and where states and kept rows lie: pages of the cache, in pieces of a head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/kv/running_state.h"

namespace outrider::cuda {

inline constexpr int kKdaDim = 128;  // D, of a head
inline constexpr int kKdaConv = 4;   // rows that the convolution reads, its own included
// Numbers of a piece: RunningStateSpec::StateNumbers and RowNumbers of these sizes.
inline constexpr int kKdaStateNumbers = kKdaDim * kKdaDim + (kKdaConv - 1) * 3 * kKdaDim;
inline constexpr int kKdaRowNumbers = kKeptStateRows * 6 * kKdaDim;

/// Where the number of a key and a value channel stands in the state of a head, in memory: by 16
/// value channels, then by slices of 8 key channels; in these a lane of a warp has four neighbours
/// (kda_state.cuh), which are loaded together.
constexpr int KdaStatePlace(int key, int value) {
  const int slice = value / 16 * (kKdaDim / 8) + key / 16 * 2 + key % 2;
  const int lane = value % 16 / 2 * 4 + key % 16 / 4;
  return (slice * 32 + lane) * 4 + key % 4 / 2 * 2 + value % 2;
}

/// KdaRows skips requests of this number of rows or fewer: KdaAttention finishes their rows.
inline constexpr int kKdaFewRows = 32;

/// One request of a step. Its rows stand at positions from `context` on, the drafts last.
struct KdaRequest {
  int32_t first_row = 0;
  int32_t num_rows = 0;  // 0: there is no such request
  int32_t context = 0;
  int32_t num_drafts = 0;    // up to kMostStateDrafts
  int32_t state_tokens = 0;  // of the state to start from: a multiple of kStateBlock up to context,
                             // less than kKeptStateRows below it; 0: nothing is read
  int32_t restores = 0;      // not 0: it lies in restored_pages, and state_tokens is context
  // Of the step's checkpoints those that the request leaves.
  int32_t first_checkpoint = 0;
  int32_t end_checkpoint = 0;
};

/// The requests of a step. All arrays are on the device.
struct KdaStep {
  int num_requests = 0;
  int num_rows = 0;
  bool has_many_rows = false;               // a request has more than kKdaFewRows
  const KdaRequest* requests = nullptr;     // [num_requests]
  const int32_t* row_requests = nullptr;    // [num_rows]; negative: the row belongs to nobody
  const int32_t* state_pages = nullptr;     // [num_requests, state_stride]
  const int32_t* row_pages = nullptr;       // [num_requests, row_stride]
  const int32_t* restored_pages = nullptr;  // [num_requests, state_stride]; null: nobody restores
  const int32_t* checkpoint_tokens = nullptr;  // [checkpoints] multiples of kStateBlock, behind the
                                               // request's context
  const int32_t* checkpoint_pages = nullptr;   // [checkpoints, state_stride]
  int state_stride = 0;
  int row_stride = 0;
};

/// The memory of the cache. A page holds as many whole pieces as fit.
struct KdaMemory {
  std::byte* data = nullptr;  // 16-byte aligned
  int64_t page_bytes = 0;     // a multiple of 16 that holds a piece of either kind
  int first_head = 0;         // of the layer, among those of all layers
};

}  // namespace outrider::cuda
