#include <algorithm>

#include "outrider/kernels/cuda/compressed/compressed_rows.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sparse/request_of_row.cuh"

namespace outrider::cuda {
namespace {

constexpr int kPlanRowsThreads = 256;

__global__ void __launch_bounds__(kPlanRowsThreads)
    PlanRowsKernel(const CompressedRowsParams params, const CompressedRows rows) {
  const int row = static_cast<int>(blockIdx.x) * kPlanRowsThreads + static_cast<int>(threadIdx.x);
  if (row > params.num_rows) return;
  rows.starts[row] = row;
  if (row == params.num_rows) return;
  const int true_rows = params.num_requests > 0 ? params.query_start_loc[params.num_requests] : 0;
  CompressedRow at = {};
  int entries = 0;
  if (row < true_rows) {
    at.request = RequestOfRow(params.query_start_loc, params.num_requests, row);
    const int first = params.query_start_loc[at.request];
    const int end = params.query_start_loc[at.request + 1];
    const int length = params.seq_lens[at.request];
    const int position = length - end + row;
    // In a block: the row before its first, and its last.
    const int own = params.in_blocks ? length - end + first - 1 : position;
    const int last = params.in_blocks ? length - 1 : position;
    at.window_begin = max(0, own - params.window + 1);
    at.window_count = max(0, last - at.window_begin + 1);
    if (params.ratio > 0) entries = max(0, (position + 1) / params.ratio);
    if (params.top_k > 0) entries = min(entries, params.top_k);
  }
  rows.rows[row] = at;
  rows.counts[row] = at.window_count + entries;
}

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

size_t CompressedRowsBytes(int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  return Aligned(rows * sizeof(CompressedRow)) + Aligned(rows * sizeof(int)) +
         Aligned((rows + 1) * sizeof(int));
}

CompressedRows CarveCompressedRows(void* memory, int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  auto* const base = static_cast<uint8_t*>(memory);
  CompressedRows arrays;
  arrays.rows = reinterpret_cast<CompressedRow*>(base);
  arrays.counts = reinterpret_cast<int*>(base + Aligned(rows * sizeof(CompressedRow)));
  arrays.starts = reinterpret_cast<int*>(reinterpret_cast<uint8_t*>(arrays.counts) +
                                         Aligned(rows * sizeof(int)));
  return arrays;
}

cudaError_t PlanCompressedRows(const CompressedRowsParams& params, const CompressedRows& rows,
                               cudaStream_t stream) {
  if (params.num_rows < 0 || params.num_rows > kMaxCompressedRows || params.num_requests < 0) {
    RefuseArgument("PlanCompressedRows: ", params.num_rows, " rows of ", params.num_requests,
                   " requests: rows must be 0 to ", kMaxCompressedRows);
  }
  if (params.window < 0 || params.ratio < 0 || params.top_k < 0) {
    RefuseArgument("PlanCompressedRows: window ", params.window, ", ratio ", params.ratio,
                   " and top_k ", params.top_k, " must not be negative");
  }
  if (params.in_blocks && params.ratio > 0) {
    RefuseArgument("PlanCompressedRows: rows in blocks read no entries, the ratio is ",
                   params.ratio);
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int blocks = params.num_rows / kPlanRowsThreads + 1;
  PlanRowsKernel<<<blocks, kPlanRowsThreads, 0, stream>>>(params, rows);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
