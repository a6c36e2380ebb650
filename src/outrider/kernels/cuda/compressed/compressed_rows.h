// What the rows of a step read in DeepSeek-V4's attention: rows of a window, then entries that
// stand for several tokens each. Made once per step, on the device, for all layers of a kind.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace outrider::cuda {

inline constexpr int kMaxCompressedRows = 1 << 20;  // of a step

/// Where a row's keys are: window_count rows of its request from position window_begin on, then its
/// entries.
struct alignas(16) CompressedRow {
  int32_t request;  // 0 for rows that read nothing
  int32_t window_begin;
  int32_t window_count;
};

struct CompressedRowsParams {
  int num_rows = 0;  // upper bound; rows from query_start_loc[num_requests] on read nothing
  int num_requests = 0;
  const int32_t* query_start_loc = nullptr;  // [num_requests + 1], on the device
  // [num_requests], on the device: tokens of each request, the step's own included
  const int32_t* seq_lens = nullptr;
  // The row at position p reads the window's rows of the positions p - window + 1 .. p; 0: none.
  int window = 0;
  // Instead, rows of a request read the `window` rows before the first of them and all of
  // themselves. Without entries.
  bool in_blocks = false;
  int ratio = 0;  // the row at position p sees (p + 1) / ratio entries; 0: none
  int top_k = 0;  // entries that a row reads at most; 0: all that it sees
};

/// Arrays on the device.
struct CompressedRows {
  CompressedRow* rows = nullptr;  // [rows]
  int* counts = nullptr;          // [rows]: keys of a row, of its window and entries
  int* starts = nullptr;          // [rows + 1]: 0, 1, 2 ..: rows as requests of one row each
};

/// Bytes of the arrays for up to `max_rows` rows.
size_t CompressedRowsBytes(int max_rows);
/// The arrays in `memory`, 256-byte aligned.
CompressedRows CarveCompressedRows(void* memory, int max_rows);

/// Fills `rows`. Fixed launch shape, safe to capture. Throws Error for parameters outside the
/// ranges above; otherwise returns what the launch returned.
cudaError_t PlanCompressedRows(const CompressedRowsParams& params, const CompressedRows& rows,
                               cudaStream_t stream);

}  // namespace outrider::cuda
