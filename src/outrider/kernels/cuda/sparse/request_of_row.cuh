// The request that a row of a step belongs to.
#pragma once

namespace outrider::cuda {

/// `row` is below query_start_loc[num_requests].
__device__ __forceinline__ int RequestOfRow(const int* query_start_loc, int num_requests, int row) {
  int low = 0;
  int high = num_requests;  // query_start_loc[low] <= row < query_start_loc[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (query_start_loc[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace outrider::cuda
