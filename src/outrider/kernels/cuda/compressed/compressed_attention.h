// DeepSeek-V4's attention: every row reads the rows of its window, then entries that stand for
// several tokens each, all that it sees or those that an indexer chose. Decode, verify, prompt and
// block rows alike. Keys are values: 512 numbers, the last 64 rotated.
//
// For row r, its keys c_i (compressed_rows.h), i < counts[r], and head h:
//   s_i = softmax_scale * <q_rh, c_i>
//   O_rh = sum_i exp(s_i) c_i / (sum_i exp(s_i) + exp(sink_h)),
// whose last 64 numbers are then rotated by the row's angles, pairs (2i, 2i + 1).
//
// Row invariance: a row's keys are worked off in tiles of 64 places from place 0, the window's
// first, and folded every kListedSplit places (sparse/listed_attention.h). So a row's bits depend
// on its query, its angles and its keys alone: not on the other rows, the pages, or how the work
// was cut. What is in the caches beside the row's keys, be it NaN, is not read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cuda/compressed/compressed_rows.h"
#include "outrider/kernels/cuda/sparse/listed_attention.h"
#include "outrider/kernels/cuda/sparse/paged_entries.h"

namespace outrider::cuda {

inline constexpr int kCompressedDim = 512;  // of a key and a head
inline constexpr int kCompressedRotary = 64;

struct CompressedAttentionParams {
  // Rows first_row .. first_row + num_rows - 1 of the step. `rows` and `lists` are numbered by the
  // step's rows, the others by the call's.
  int first_row = 0;
  int num_rows = 0;
  int heads = 0;
  CompressedRows rows = {};
  const void* q = nullptr;  // bf16 [num_rows, heads, 512], 16-byte aligned
  // bf16 or, with `codes`, e4m3 [512]; pages of either a multiple of 128 bytes apart, the last at
  // most 255 GiB behind the first, the first 16-byte aligned. Entry j of the window's is the row of
  // position j.
  bool codes = false;
  PagedEntries window = {};
  PagedEntries entries = {};  // with entries
  // What row r reads after its window: entries lists[r, 0], lists[r, 1] ..; null: 0, 1, 2 ..
  const int32_t* lists = nullptr;
  int64_t lists_stride = 0;
  float softmax_scale = 1.0F;   // > 0
  const float* sink = nullptr;  // optional [heads]
  // Optional float32 [num_rows, 32]: of the outputs' rotation, magnitude included.
  const float* cos = nullptr;
  const float* sin = nullptr;
  void* output = nullptr;  // bf16 [num_rows, heads, 512], 16-byte aligned
  float* lse = nullptr;    // [num_rows, heads], natural logarithm, without the sink; -inf: no key
};

/// Bytes of the workspace, which must be zeroed once after allocation. One workspace serves all
/// layers of a step, one after another in one stream. Limits: max_count is of a row's keys.
size_t CompressedAttentionWorkspaceBytes(const ListedAttentionLimits& limits);

/// Builds the work list for rows first_row .. first_row + num_rows - 1 from rows.counts, on the
/// device: once per step, range of rows and kind of layer. Returns cudaErrorInvalidValue for
/// parameters outside the ranges above or beyond `limits`.
cudaError_t CompressedAttentionPlan(const CompressedAttentionParams& params,
                                    const ListedAttentionLimits& limits, void* workspace,
                                    cudaStream_t stream);

/// Runs the planned rows for one layer. Same return codes. The kernel's blocks, one per
/// multiprocessor, wait for each other's results: do not confine the stream to a part of the
/// device.
cudaError_t CompressedAttention(const CompressedAttentionParams& params,
                                const ListedAttentionLimits& limits, void* workspace,
                                cudaStream_t stream);

}  // namespace outrider::cuda
