#include <algorithm>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sparse/choose_entries.h"
#include "outrider/kernels/cuda/sparse/choose_entries_task.cuh"

namespace outrider::cuda {
namespace {

__global__ void __launch_bounds__(kChoiceThreads, 1)
    ChooseEntriesKernel(const ChooseEntriesParams params, int room_keys) {
  __shared__ ChoiceShared shared;
  extern __shared__ __align__(16) uint32_t choice_keys[];
  LaunchDependents();
  WaitForPriorGrid();
  ChooseRow(params, static_cast<int>(blockIdx.x), choice_keys, room_keys, shared);
}

void Check(const ChooseEntriesParams& params) {
  if (params.first_row < 0 || params.num_rows < 0 || params.max_visible < 0) {
    RefuseArgument("ChooseEntries: rows ", params.first_row, " + ", params.num_rows, ", of up to ",
                   params.max_visible, " entries: none must be negative");
  }
  if (params.top_k < 1 || params.top_k > kMaxChosen) {
    RefuseArgument("ChooseEntries: top_k is ", params.top_k, ", it must be 1 to ", kMaxChosen);
  }
  if (params.lists_stride < std::min(params.top_k, params.max_visible)) {
    RefuseArgument("ChooseEntries: lists_stride is ", params.lists_stride, ", a row of ",
                   params.max_visible, " entries may choose ", params.top_k);
  }
  const bool scored = params.max_visible > params.top_k;
  if (scored && (params.scores_stride < params.max_visible || params.scores_stride % 4 != 0)) {
    RefuseArgument("ChooseEntries: scores_stride is ", params.scores_stride,
                   ", it must be a multiple of 4 and at least ", params.max_visible);
  }
}

}  // namespace

cudaError_t ChooseEntries(const ChooseEntriesParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(ChooseEntriesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kMaxSharedKeys * static_cast<int>(sizeof(uint32_t)));
  });
  if (allowed != cudaSuccess) return allowed;
  const int scored = params.max_visible > params.top_k ? params.max_visible : 0;
  const int room_keys = std::min(scored, kMaxSharedKeys);
  return LaunchDependent(ChooseEntriesKernel, dim3(params.num_rows), dim3(kChoiceThreads),
                         room_keys * sizeof(uint32_t), stream, params, room_keys);
}

}  // namespace outrider::cuda
