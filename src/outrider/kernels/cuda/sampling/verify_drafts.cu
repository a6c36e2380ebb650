// A warp per request, a lane per row of its logits, 32 at a time.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sampling/verify_drafts.h"

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
  const VerifiedRequest verified = params.requests[request];
  int num_accepted = 0;
  int last = 0;
  // From the last rows on, so that the first row that gives no draft has the last word.
  for (int begin = (rows - 1) / kThreads * kThreads; begin >= 0; begin -= kThreads) {
    const int row = begin + lane;
    const int drawn = row < rows ? params.drawn[first + row] : 0;
    int draft = row + 1 < rows ? drafts[row] : -1;
    if (draft < -1) draft = max(params.kept_tokens[-2 - draft], 0);
    const bool right = verified.given_count < 0 ? draft == drawn : row < verified.given_count;
    const bool accepted = row + 1 < rows && right;
    if (verified.drawn >= 0 && row < rows) {
      params.kept_tokens[verified.drawn + row] = accepted ? draft : drawn;
    }
    const uint32_t wrong = __ballot_sync(~0u, !accepted);
    if (wrong == 0) continue;
    const int count = __ffs(static_cast<int>(wrong)) - 1;
    last = __shfl_sync(~0u, drawn, count);
    num_accepted = begin + count;
  }
  if (lane != 0) return;
  params.num_accepted[request] = num_accepted;
  if (verified.last_token >= 0) params.kept_tokens[verified.last_token] = last;
  if (verified.rejected >= 0) params.kept_tokens[verified.rejected] = rows - 1 - num_accepted;
  if (verified.last_row >= 0) {
    params.kept_tokens[verified.last_row] = params.head_rows[first + num_accepted];
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
