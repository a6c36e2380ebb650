#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"
#include "outrider/kernels/cuda/sparse/sparse_rows_task.cuh"

namespace outrider::cuda {
namespace {

__global__ void __launch_bounds__(kSparsePlanThreads, 1)
    PlanSparseRowsKernel(const SparseRowsParams params, const SparseRows rows) {
  __shared__ SparsePlanShared shared;
  PlanRows(params, rows, shared);
}

/// Ints of an array of `count`, so that the next one is 256-byte aligned.
size_t AlignedInts(size_t count) { return (count + 63) / 64 * 64; }

}  // namespace

size_t SparseRowsBytes(int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  return (5 * AlignedInts(rows) + 2 * AlignedInts(rows + 1)) * sizeof(int);
}

SparseRows CarveSparseRows(void* memory, int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  int* next = static_cast<int*>(memory);
  const auto take = [&](size_t count) {
    int* at = next;
    next += AlignedInts(count);
    return at;
  };
  SparseRows arrays;
  arrays.request = take(rows);
  arrays.visible = take(rows);
  arrays.counts = take(rows);
  arrays.tile_rows = take(rows);
  arrays.score_piece = take(1);
  arrays.starts = take(rows + 1);
  arrays.score_items = take(rows + 1);
  return arrays;
}

cudaError_t PlanSparseRows(const SparseRowsParams& params, const SparseRows& rows,
                           cudaStream_t stream) {
  if (params.num_rows < 0 || params.num_rows > kMaxSparseRows || params.num_requests < 0) {
    RefuseArgument("PlanSparseRows: ", params.num_rows, " rows of ", params.num_requests,
                   " requests: rows must be 0 to ", kMaxSparseRows);
  }
  if (params.ratio < 1 || params.top_k < 1) {
    RefuseArgument("PlanSparseRows: ratio ", params.ratio, " and top_k ", params.top_k,
                   " must be at least 1");
  }
  if (params.index_heads != 8 && params.index_heads != 16 && params.index_heads != 32 &&
      params.index_heads != 64) {
    RefuseArgument("PlanSparseRows: index_heads is ", params.index_heads,
                   ", it must be 8, 16, 32 or 64");
  }
  if (params.score_rows < 32 || params.score_rows % 32 != 0) {
    RefuseArgument("PlanSparseRows: score_rows is ", params.score_rows,
                   ", it must be a multiple of 32");
  }
  if (params.num_rows == 0) return cudaSuccess;
  PlanSparseRowsKernel<<<1, kSparsePlanThreads, 0, stream>>>(params, rows);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
