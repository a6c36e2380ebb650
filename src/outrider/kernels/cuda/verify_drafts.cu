// A warp per request, a lane per row of its logits, 32 at a time.
#include "outrider/kernels/cuda/dependent_launch.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"
#include "outrider/kernels/cuda/verify_drafts.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 32;

__global__ void __launch_bounds__(kThreads) VerifyKernel(const VerifyParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int request = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int first = params.logit_start_loc[request];
  const int rows = params.logit_start_loc[request + 1] - first;
  const int32_t* const drafts = params.token_ids + params.logit_rows[first] + 1;
  for (int begin = 0;; begin += kThreads) {
    const int row = begin + lane;
    const int drawn = row < rows ? params.drawn[first + row] : 0;
    bool accepted = row + 1 < rows;
    if (accepted) {
      int draft = drafts[row];
      if (draft < -1) draft = max(params.kept_tokens[-2 - draft], 0);
      accepted = draft == drawn;
    }
    const uint32_t wrong = __ballot_sync(~0u, !accepted);
    if (wrong == 0) continue;
    const int count = __ffs(static_cast<int>(wrong)) - 1;
    const int last = __shfl_sync(~0u, drawn, count);
    if (lane != 0) return;
    params.num_accepted[request] = begin + count;
    const int place = params.last_places[request];
    if (place >= 0) params.kept_tokens[place] = last;
    return;
  }
}

}  // namespace

cudaError_t VerifyDrafts(const VerifyParams& params, cudaStream_t stream) {
  if (params.num_requests <= 0) {
    RefuseArgument("VerifyDrafts: ", params.num_requests, " requests, there must be at least 1");
  }
  return LaunchDependent(VerifyKernel, dim3(params.num_requests), dim3(kThreads), 0, stream,
                         params);
}

}  // namespace outrider::cuda
