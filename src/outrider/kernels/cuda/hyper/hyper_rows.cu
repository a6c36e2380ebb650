#include <algorithm>
#include <tuple>

#include "outrider/kernels/cuda/hopper/cluster_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/hyper/hyper_rows.h"
#include "outrider/kernels/cuda/hyper/hyper_rows_task.cuh"

namespace outrider::cuda {
namespace {

constexpr int kMaxHidden = 8192;
// From this number of rows on, a cluster takes kRowsTogether of them and reads fn, which comes from
// L2, once.
constexpr int kManyRows = 32;
constexpr int kRowsTogether = 4;

/// Columns of fn that a thread holds early, where registers last.
constexpr int EarlyColumns(int rows, int threads, int sums) {
  if (rows > 1) return 0;
  return std::min(sums * kHyperStreams, threads == 128 ? 24 : 8);
}

template <int kRows, int kThreads, int kSums>
__global__ void __launch_bounds__(kHyperThreads<kRows, kThreads, kSums>)
    HyperRowsKernel(const __grid_constant__ HyperRowsParams params) {
  __shared__ HyperShared<kRows, kThreads> shared;
  LaunchDependents();
  const EarlyWeights<kSums, EarlyColumns(kRows, kThreads, kSums)> early(
      params, static_cast<int>(ClusterRank()));
  WaitForPriorGrid();
  int rows = params.num_rows;
  if (params.true_rows != nullptr) rows = min(rows, *params.true_rows);
  const int first_row = static_cast<int>(blockIdx.x) / kHyperBlocks * kRows;
  if (first_row >= rows) return;  // all blocks of a cluster alike
  RunHyperRows<kRows, kThreads>(params, first_row, rows, early, shared);
}

template <int kRows, int kThreads, int kSums>
cudaError_t Launch(const HyperRowsParams& params, cudaStream_t stream) {
  const int clusters = (params.num_rows + kRows - 1) / kRows;
  return LaunchClusters(HyperRowsKernel<kRows, kThreads, kSums>, kHyperBlocks,
                        dim3(static_cast<unsigned>(clusters * kHyperBlocks)),
                        dim3(kHyperThreads<kRows, kThreads, kSums>), 0, stream, params);
}

template <int kSums>
cudaError_t LaunchOf(const HyperRowsParams& params, cudaStream_t stream) {
  const bool many = params.num_rows >= kManyRows;
  if (params.hidden <= kHyperBlocks * 4 * 128) {
    return many ? Launch<kRowsTogether, 128, kSums>(params, stream)
                : Launch<1, 128, kSums>(params, stream);
  }
  return many ? Launch<kRowsTogether, 256, kSums>(params, stream)
              : Launch<1, 256, kSums>(params, stream);
}

bool IsRowType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

void Check(const HyperRowsParams& params) {
  if (params.num_rows < 0) {
    RefuseArgument("HyperRows: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.hidden < 4 || params.hidden % 4 != 0 || params.hidden > kMaxHidden) {
    RefuseArgument("HyperRows: hidden is ", params.hidden, ", it must be a multiple of 4 up to ",
                   kMaxHidden);
  }
  if (params.part == HyperPart::kMix && params.iterations < 1) {
    RefuseArgument("HyperRows: ", params.iterations, " iterations, there must be at least 1");
  }
  if (!IsRowType(params.y_dtype) || !IsRowType(params.mean_dtype)) {
    RefuseArgument("HyperRows: rows of ", DTypeName(params.y_dtype), " and ",
                   DTypeName(params.mean_dtype), ": they must be float32 or bfloat16");
  }
  if (params.terms != nullptr && (params.y != nullptr || params.num_terms < 1)) {
    RefuseArgument("HyperRows: ", params.num_terms, " terms", params.y != nullptr ? " and y" : "",
                   ": there must be at least 1, without y");
  }
  const std::tuple<const char*, bool, int64_t, int64_t> strides[] = {
      {"streams_stride", true, params.streams_stride, int64_t{kHyperStreams} * params.hidden},
      {"y_stride", params.y != nullptr, params.y_stride, params.hidden},
      {"mean_stride", params.mean != nullptr, params.mean_stride, params.hidden},
      {"mixture_stride", params.mixture != nullptr, params.mixture_stride, params.hidden},
      {"out_stride", params.norm_weight != nullptr, params.out_stride, params.hidden}};
  for (const auto& [name, used, stride, least] : strides) {
    if (used && (stride < least || stride % 4 != 0)) {
      RefuseArgument("HyperRows: ", name, " is ", stride,
                     ", it must be a multiple of 4 that is at least ", least);
    }
  }
}

}  // namespace

cudaError_t HyperRows(const HyperRowsParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  switch (params.part) {
    case HyperPart::kMix:
      return LaunchOf<kHyperSums>(params, stream);
    case HyperPart::kContract:
      return LaunchOf<kHyperStreams>(params, stream);
    default:
      return LaunchOf<0>(params, stream);
  }
}

}  // namespace outrider::cuda
