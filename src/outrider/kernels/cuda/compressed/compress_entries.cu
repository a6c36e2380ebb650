#include "outrider/kernels/cuda/compressed/compress_entries.h"
#include "outrider/kernels/cuda/compressed/compress_entries_task.cuh"
#include "outrider/kernels/cuda/hopper/cluster_launch.h"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"

namespace outrider::cuda {
namespace {

template <int kGroups>
__global__ void __launch_bounds__(kPoolThreads)
    CompressEntriesKernel(const __grid_constant__ CompressParams params) {
  __shared__ PoolShared shared;
  LaunchDependents();
  WaitForPriorGrid();
  constexpr int kBlocks = kPoolBlocks<kGroups>;
  const Compressor& compressor = params.compressors[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x) / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  PoolEntry<kGroups>(params, compressor, row, rank, shared);
}

void Check(const CompressParams& params) {
  if (params.num_rows < 0 || params.count < 1 || params.count > kMaxCompressors) {
    RefuseArgument("compressors: ", params.num_rows, " rows for ", params.count,
                   " compressors: rows must not be negative, compressors 1 or 2");
  }
  for (int i = 0; i < params.count; ++i) {
    const Compressor& c = params.compressors[i];
    const bool known = (c.ratio == 4 && c.overlaps) || (c.ratio == 128 && !c.overlaps);
    if (!known || c.ratio != params.compressors[0].ratio) {
      RefuseArgument("compressors: ratio ", c.ratio, c.overlaps ? " with" : " without",
                     " overlap: it must be 4 with or 128 without, the same of all");
    }
    if (c.width != 128 && c.width != 512) {
      RefuseArgument("compressors: width is ", c.width, ", it must be 128 or 512");
    }
    if ((c.codes || c.rounds) && (c.codes == c.rounds || (c.width == 128 && !c.overlaps))) {
      RefuseArgument("compressors: entries of ", c.width,
                     " numbers, codes or rounded: not both, "
                     "and narrow ones only with overlap");
    }
    if (c.state_block_size < 1 || c.state_block_stride % 16 != 0) {
      RefuseArgument("compressors: blocks of ", c.state_block_size, " rows, ", c.state_block_stride,
                     " bytes apart: the size must be positive, the distance a multiple of 16");
    }
    if (c.entry_block_size < 1 || c.entry_block_stride % 16 != 0) {
      RefuseArgument("compressors: blocks of ", c.entry_block_size, " entries, ",
                     c.entry_block_stride,
                     " bytes apart: the size must be positive, the distance a multiple of 16");
    }
  }
}

}  // namespace

cudaError_t CompressEntries(const CompressParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  const auto rows = static_cast<unsigned>(params.num_rows);
  const auto count = static_cast<unsigned>(params.count);
  if (params.compressors[0].overlaps) {
    return LaunchDependent(CompressEntriesKernel<1>, dim3(rows, count), dim3(kPoolThreads / 2), 0,
                           stream, params);
  }
  constexpr int kBlocks = kPoolBlocks<16>;
  return LaunchClusters(CompressEntriesKernel<16>, kBlocks, dim3(rows * kBlocks, count),
                        dim3(kPoolThreads), 0, stream, params);
}

}  // namespace outrider::cuda
