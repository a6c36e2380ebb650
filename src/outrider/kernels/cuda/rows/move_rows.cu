// A thread per row.
#include "outrider/kernels/cuda/rows/move_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) MoveRowsKernel(const MoveRowsParams params) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= params.num_rows || params.places[row] < 0) return;
  const int back = params.kept_numbers[params.places[row]];
  const int position = params.positions[row] - back;
  if (back < 0 || position < 0) __trap();
  if (params.writes_positions) params.positions[row] = position;
  if (params.seq_lens == nullptr) return;
  const int request = params.requests == nullptr ? row : params.requests[row];
  const bool is_first =
      params.requests == nullptr || row == 0 || params.requests[row - 1] != request;
  if (is_first) params.seq_lens[request] -= back;
  const int column = (position / params.block_size) & params.block_table_mask;
  const int64_t block = params.block_tables[int64_t{request} * params.block_table_stride + column];
  params.slots[row] = block * params.block_size + position % params.block_size;
}

}  // namespace

cudaError_t MoveRows(const MoveRowsParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((params.num_rows + kThreads - 1) / kThreads);
  MoveRowsKernel<<<blocks, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
