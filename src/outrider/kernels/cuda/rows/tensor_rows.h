// What operations over any network need beside the kernels of a layer: rows copied between places
// and types (an embedding is such a copy), the angles of positions, the place of a row's largest
// value. Each is one launch; a row's bits depend on that row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

/// to[to_rows[r]] = from[from_rows[r]] for r below num_rows, rounded once if `to` is narrower; rows
/// do not overlap. A row number below -1 in from_rows stands for kept_tokens[-2 - number], or for 0
/// where that is negative. Other row numbers outside [0, from_size) and [0, to_size) are bugs: the
/// kernel stops with an error.
struct CopyRowsParams {
  int64_t num_rows = 0;
  int64_t cols = 0;
  const void* from = nullptr;  // kF32 or kBF16, strides in elements
  DType from_dtype = DType::kF32;
  int64_t from_stride = 0;
  int64_t from_size = 0;                 // with from_rows
  const int32_t* from_rows = nullptr;    // optional [num_rows]; null: r
  const int32_t* kept_tokens = nullptr;  // [num_kept] row numbers
  int64_t num_kept = 0;
  void* to = nullptr;
  DType to_dtype = DType::kF32;
  int64_t to_stride = 0;
  int64_t to_size = 0;               // with to_rows
  const int32_t* to_rows = nullptr;  // optional [num_rows]; null: r
  const int32_t* zero_at = nullptr;  // optional [num_rows]: rows whose entry is 0 become zeros
};

/// Throws Error for other types; otherwise returns what the launch returned.
cudaError_t CopyRows(const CopyRowsParams& params, cudaStream_t stream);

inline constexpr int kMostListedRows = 256;

/// CopyRows of few rows whose numbers, or their places in kept_tokens, are the host's: they go to
/// the device with the launch. Without params.from_rows and to_rows. Throws Error for too many rows
/// and for numbers out of range.
cudaError_t CopyListedRows(const CopyRowsParams& params, std::span<const int32_t> from_rows,
                           std::span<const int32_t> to_rows, cudaStream_t stream);

inline constexpr int kMaxFrequencies = 64;

/// cos and sin of positions[r] * frequencies[i] times `magnitude`: float32 [num_rows, count].
struct AngleParams {
  int64_t num_rows = 0;
  const int32_t* positions = nullptr;  // on the device
  int count = 0;                       // up to kMaxFrequencies
  float frequencies[kMaxFrequencies] = {};
  float magnitude = 1.0F;
  float* cos = nullptr;
  float* sin = nullptr;
};

/// Throws Error for too many frequencies; otherwise returns what the launch returned.
cudaError_t MakeAngles(const AngleParams& params, cudaStream_t stream);

/// places[r] = where the largest of the first `cols` values of float32 row r stands, the lowest of
/// equals; -1 where the largest is infinite or one is NaN.
cudaError_t FindLargest(const float* rows, int64_t num_rows, int64_t cols, int64_t stride,
                        int32_t* places, cudaStream_t stream);

}  // namespace outrider::cuda
