// Rows whose positions the host knows only an upper bound of: they go back by a number that the
// device keeps, how many drafts of their request were rejected.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

/// Row r goes back by kept_numbers[places[r]] positions, or stays where places[r] is negative. A
/// request goes back as a whole: its rows have one place.
struct MoveRowsParams {
  int num_rows = 0;
  const int32_t* places = nullptr;        // [num_rows]
  const int32_t* requests = nullptr;      // [num_rows]: whose row it is; null: row r is request r's
  const int32_t* kept_numbers = nullptr;  // not negative where a row goes back
  int32_t* positions = nullptr;           // [num_rows]
  bool writes_positions = true;           // false: the others are changed alone
  // What the layers of a cache group read; null: nothing.
  int32_t* seq_lens = nullptr;            // [requests]
  int64_t* slots = nullptr;               // [num_rows] block * block_size + offset
  const int32_t* block_tables = nullptr;  // [requests, block_table_stride]
  int block_table_stride = 0;
  int block_table_mask = -1;  // of the number of a block: its column
  int block_size = 0;
};

/// One launch, none without rows; returns what it returned.
cudaError_t MoveRows(const MoveRowsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
