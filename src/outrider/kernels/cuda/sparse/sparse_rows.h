// What the rows of a step see of a cache whose entries an indexer chooses from, and how the work of
// scoring these entries is cut: made once per step, on the device, for all layers of a kind.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace outrider::cuda {

inline constexpr int kIndexDim = 128;           // of an index key
inline constexpr int kIndexColumns = 256;       // columns (row, head) that a block scores together
inline constexpr int kMaxSparseRows = 1 << 20;  // of a step

struct SparseRowsParams {
  int num_rows = 0;  // upper bound; rows from query_start_loc[num_requests] on see nothing
  int num_requests = 0;
  const int* query_start_loc = nullptr;  // int32 [num_requests + 1], on the device
  // int32 [num_requests], on the device: tokens of each request, the step's own included
  const int* seq_lens = nullptr;
  int ratio = 1;        // the row at position p sees (p + 1) / ratio entries
  int top_k = 0;        // entries that a row attends to at most
  int index_heads = 0;  // 8, 16, 32 or 64
  // Rows whose scores are in memory together: rows i * score_rows and (i + 1) * score_rows are
  // never scored by one block. A multiple of 32.
  int score_rows = 32;
};

/// Arrays on the device.
struct SparseRows {
  int* request = nullptr;  // [rows]: whose row it is; 0 for rows that see nothing
  int* visible = nullptr;  // [rows]: entries that it sees
  int* counts = nullptr;   // [rows]: entries of its list, min(visible, top_k)
  int* starts = nullptr;   // [rows + 1]: 0, 1, 2 ..: rows as requests of one row each
  // Rows that are scored together: [rows], how many begin here, 0 in the midst of some.
  int* tile_rows = nullptr;
  int* score_items = nullptr;  // [rows + 1]: pieces of scoring before those of this row's tile
  int* score_piece = nullptr;  // [1]: entries of a piece, a multiple of 64
};

/// Bytes of the arrays for up to `max_rows` rows.
size_t SparseRowsBytes(int max_rows);
/// The arrays in `memory`, 256-byte aligned.
SparseRows CarveSparseRows(void* memory, int max_rows);

/// Fills `rows`. Fixed launch shape, safe to capture. Throws Error for parameters outside the
/// ranges above; otherwise returns what the launch returned.
cudaError_t PlanSparseRows(const SparseRowsParams& params, const SparseRows& rows,
                           cudaStream_t stream);

}  // namespace outrider::cuda
