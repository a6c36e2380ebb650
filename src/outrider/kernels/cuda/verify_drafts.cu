// A warp per request, a lane per row of its logits.
#include "outrider/kernels/cuda/dependent_launch.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"
#include "outrider/kernels/cuda/verify_drafts.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 32;

__device__ __forceinline__ bool Stops(const VerifyParams& params, const SlotSampling& sampling,
                                      int token) {
  bool stops = false;
  for (int i = 0; i < sampling.num_stops; ++i) {
    stops |= params.stop_tokens[sampling.first_stop + i] == token;
  }
  return stops;
}

__global__ void __launch_bounds__(kThreads)
    VerifyKernel(const VerifyParams params, const VerifyResults results) {
  LaunchDependents();
  WaitForPriorGrid();
  const int index = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const StepRequest request = params.requests[index];
  const SlotStates& slots = params.slots;
  const int slot = request.slot;
  const SlotSampling sampling = params.sampling[slot];
  const int first = params.logit_start_loc[index];
  const int rows = params.logit_start_loc[index + 1] - first;
  const bool exists = lane < rows;
  const int drawn = exists ? params.drawn[first + lane] : 0;
  const bool has_draft = lane + 1 < rows;
  const int draft = has_draft ? params.token_ids[params.logit_rows[first] + 1 + lane] : 0;
  const int remaining = slots.remaining[slot];
  const int length = request.prompt_rows > 0 ? request.first_position : slots.lengths[slot];

  const uint32_t wrong = __ballot_sync(~0u, !(has_draft && draft == drawn));
  const int accepted = __ffs(static_cast<int>(wrong)) - 1;  // < 32: the last row has no draft
  int emitted = 0;
  int ending = kGoesOn;
  if (rows > 0) {
    const int last = __shfl_sync(~0u, drawn, accepted);
    emitted = last < 0 ? accepted : accepted + 1;
    if (last < 0) ending = last == kDrawOverflown ? kOverflow : kDeadEnd;
    const uint32_t stops = __ballot_sync(~0u, lane < emitted && Stops(params, sampling, drawn));
    if (stops != 0) {
      emitted = __ffs(static_cast<int>(stops));
      ending = kStopToken;
    }
    if (ending == kGoesOn && emitted >= remaining) ending = kNoneRemain;
  }
  const bool emits = lane < emitted;
  const int columns = 1 + slots.max_drafts;
  if (lane < columns) {
    results.emitted[static_cast<int64_t>(index) * columns + lane] = emits ? drawn : -1;
  }
  if (emitted > 0 && lane == emitted - 1) {
    slots.tokens[static_cast<int64_t>(slot) * columns] = drawn;
  }
  if (lane != 0) return;
  results.num_accepted[index] = accepted;
  results.num_emitted[index] = emitted;
  results.endings[index] = ending;
  slots.num_drafts[slot] = 0;
  slots.remaining[slot] = ending == kGoesOn ? remaining - emitted : 0;
  // Of a prompt all rows are valid, of a request that decodes as many as it emits tokens.
  slots.lengths[slot] = length + (request.prompt_rows > 0 ? request.prompt_rows : emitted);
}

}  // namespace

cudaError_t VerifyDrafts(const VerifyParams& params, const VerifyResults& results,
                         cudaStream_t stream) {
  if (params.num_requests <= 0) {
    RefuseArgument("VerifyDrafts: ", params.num_requests, " requests, there must be at least 1");
  }
  if (params.slots.max_drafts < 0 || params.slots.max_drafts > kMaxDrafts) {
    RefuseArgument("VerifyDrafts: max_drafts is ", params.slots.max_drafts, ", it must be 0 to ",
                   kMaxDrafts);
  }
  return LaunchDependent(VerifyKernel, dim3(params.num_requests), dim3(kThreads), 0, stream, params,
                         results);
}

}  // namespace outrider::cuda
