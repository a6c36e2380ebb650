// Latent attention (absorbed form) where every row has a list of its own of the entries that it
// reads: DeepSeek-V3.2 and GLM-5, whose indexer chooses them. Decode, verify and prompt rows alike.
//
// For row r, its list's entries c_i = [latent 512 | rotary 64], i < counts[r], and head h:
//   s_i = softmax_scale * <q_rh, c_i>,  O_rh = sum_i softmax(s)_i * c_i[0:512]
// and the log-sum-exp of s. With a sink, O_rh is multiplied by 1 / (1 + exp(sink_h - LSE_rh)).
//
// Row invariance: the list is worked off in tiles of 64 places from place 0, and folded every
// kListedSplit places (mla_decode_columns.cuh). So a row's bits depend on its query, its list and
// the entries there alone: not on the other rows, the pages, or how the work was cut. What is in
// the cache beside the list's entries, be it NaN, is not read. Entries of e4m3 give the bits of
// bf16 entries with the same numbers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "outrider/kernels/cuda/sparse/paged_entries.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"

namespace outrider::cuda {

/// Places of a list after which the result so far is folded. Part of a row's arithmetic: stays as
/// it is for ever.
inline constexpr int kListedSplit = 256;

/// What buffers must be able to hold; fixed for the life of captured graphs.
struct ListedAttentionLimits {
  int max_rows;   // up to kMaxMlaRequests: of one call
  int max_count;  // entries of a list, <= 1 << 20
  int heads;      // 1 .. 128
};

struct ListedAttentionParams {
  // Rows first_row .. first_row + num_rows - 1 of the step. `rows` and `lists` are numbered by the
  // step's rows, the others by the call's.
  int first_row = 0;
  int num_rows = 0;
  int heads = 0;
  SparseRows rows = {};            // whose `counts` are the lists' lengths
  const void* q = nullptr;         // bf16 [num_rows, heads, 576], 16-byte aligned
  const int32_t* lists = nullptr;  // [rows of the step, lists_stride], entries in the pages' range
  int64_t lists_stride = 0;
  // [576] of entry_type; pages a multiple of 64 bytes apart, the last at most 256 GiB behind the
  // first. e4m3: the numbers as they are, without a scale; the codes of NaN count as +-480
  PagedEntries entries = {};
  MlaCacheType entry_type = MlaCacheType::kBf16;
  float softmax_scale = 1.0f;   // > 0
  const float* sink = nullptr;  // optional [heads]
  void* output = nullptr;       // bf16 [num_rows, heads, 512], 16-byte aligned
  float* lse = nullptr;         // [num_rows, heads], natural logarithm; -inf for an empty list
};

/// Bytes of the workspace, which must be zeroed once after allocation. One workspace serves all
/// layers of a step, one after another in one stream.
size_t ListedAttentionWorkspaceBytes(const ListedAttentionLimits& limits);

/// Builds the work list for rows first_row .. first_row + num_rows - 1 from rows.counts, on the
/// device: once per step and range of rows. Returns cudaErrorInvalidValue for parameters outside
/// the ranges above or beyond `limits`.
cudaError_t ListedAttentionPlan(const ListedAttentionParams& params,
                                const ListedAttentionLimits& limits, void* workspace,
                                cudaStream_t stream);

/// Runs the planned rows for one layer. Same return codes. The kernel's blocks, one per
/// multiprocessor, wait for each other's results: do not confine the stream to a part of the
/// device.
cudaError_t ListedAttention(const ListedAttentionParams& params,
                            const ListedAttentionLimits& limits, void* workspace,
                            cudaStream_t stream);

}  // namespace outrider::cuda
