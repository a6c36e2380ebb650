#include <algorithm>
#include <bit>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode_host.cuh"
#include "outrider/kernels/cuda/sparse/index_scores.h"
#include "outrider/kernels/cuda/sparse/index_scores_task.cuh"

namespace outrider::cuda {
namespace {

template <bool kCodes>
__global__ void __launch_bounds__(kIndexScoreThreads, 1)
    ScoreIndexKeysKernel(const __grid_constant__ ScoreArguments args,
                         const __grid_constant__ ScoreTensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t score_bytes[];
  if (threadIdx.x == 0 && (SharedAddress(score_bytes) & 1023) != 0) __trap();
  ScoreKeys<kCodes>(args, maps, *reinterpret_cast<IndexScoresShared<kCodes>*>(score_bytes));
}

template <bool kCodes>
cudaError_t Launch(const ScoreArguments& args, const ScoreTensorMaps& maps, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(IndexScoresShared<kCodes>);
  static_assert(kBytes <= 232448, "one block per multiprocessor has 227 KB");
  static OncePerDevice once;
  const cudaError_t allowed =
      once.Call([] { return AllowShared(ScoreIndexKeysKernel<kCodes>, kBytes); });
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(ScoreIndexKeysKernel<kCodes>, dim3(MlaBlocks()), dim3(kIndexScoreThreads),
                         kBytes, stream, args, maps);
}

bool EncodeMaps(const IndexScoresParams& params, ScoreTensorMaps* maps) {
  const PagedEntries& entries = params.keys;
  const uint64_t pairs = static_cast<uint64_t>(params.step_rows) * params.heads;
  const uint64_t column_groups = params.codes ? 1 : 2;
  const uint64_t columns = kIndexDim / column_groups;
  const uint64_t row_bytes = 128 * column_groups;
  const auto encode = params.codes ? EncodeByteMap : EncodeBf16Map;
  return encode(&maps->q, params.q, {columns, pairs, column_groups, 1},
                {row_bytes, 128, pairs * row_bytes},
                {static_cast<uint32_t>(columns), kQueryBoxColumns, 1, 1}) &&
         encode(&maps->keys, entries.data,
                {columns, static_cast<uint64_t>(entries.page_size), column_groups,
                 static_cast<uint64_t>(entries.num_pages)},
                {row_bytes, 128, static_cast<uint64_t>(entries.page_stride)},
                {static_cast<uint32_t>(columns),
                 static_cast<uint32_t>(std::min(entries.page_size, kScoreTileKeys)), 1, 1});
}

void Check(const IndexScoresParams& params) {
  const int end = params.first_row + params.num_rows;
  if (params.first_row < 0 || params.num_rows < 0 || end > params.step_rows) {
    RefuseArgument("ScoreIndexKeys: rows ", params.first_row, " + ", params.num_rows,
                   " must be among the step's ", params.step_rows);
  }
  if (params.heads != 8 && params.heads != 16 && params.heads != 32 && params.heads != 64) {
    RefuseArgument("ScoreIndexKeys: heads is ", params.heads, ", it must be 8, 16, 32 or 64");
  }
  if (params.weights_stride < params.heads || params.weights_stride % 4 != 0) {
    RefuseArgument("ScoreIndexKeys: weights_stride is ", params.weights_stride,
                   ", it must be a multiple of 4 and at least ", params.heads);
  }
  const PagedEntries& keys = params.keys;
  if (keys.page_size < 8 || keys.page_size > 1024 ||
      !std::has_single_bit(static_cast<unsigned>(keys.page_size)) || keys.num_pages < 1 ||
      keys.page_stride % 16 != 0) {
    RefuseArgument("ScoreIndexKeys: ", keys.num_pages, " pages of ", keys.page_size, " keys, ",
                   keys.page_stride,
                   " bytes apart: the size must be a power of two from 8 to 1024, the distance a "
                   "multiple of 16");
  }
}

}  // namespace

cudaError_t ScoreIndexKeys(const IndexScoresParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  ScoreTensorMaps maps;
  if (!EncodeMaps(params, &maps)) return cudaErrorInvalidValue;
  const PagedEntries& entries = params.keys;
  ScoreArguments args = {};
  args.first_row = params.first_row;
  args.end_row = params.first_row + params.num_rows;
  args.rows = params.rows;
  args.heads = params.heads;
  args.weights = params.weights;
  args.weights_stride = params.weights_stride;
  args.block_table = entries.block_table;
  args.block_table_stride = entries.block_table_stride;
  args.page_shift = std::countr_zero(static_cast<unsigned>(entries.page_size));
  args.scores = params.scores;
  args.scores_stride = params.scores_stride;
  if (params.codes) {
    args.scales = static_cast<const uint8_t*>(entries.data) +
                  static_cast<int64_t>(entries.page_size) * kIndexDim;
    args.page_stride = entries.page_stride;
    return Launch<true>(args, maps, stream);
  }
  return Launch<false>(args, maps, stream);
}

}  // namespace outrider::cuda
