// What the drawn tokens of a step come to: drafts are accepted up to the first that was not drawn,
// and the slots' states move on, so that the next step can begin without the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/draw.h"
#include "outrider/kernels/cuda/step_inputs.h"

namespace outrider::cuda {

inline constexpr int kMaxDrafts = 31;

struct VerifyParams {
  int num_requests = 0;
  const StepRequest* requests = nullptr;
  SlotStates slots;                        // max_drafts up to kMaxDrafts
  const SlotSampling* sampling = nullptr;  // by request slot
  const int32_t* stop_tokens = nullptr;    // of SlotSampling
  // Of the step (StepArrays), and what was drawn (DrawResults).
  const int32_t* token_ids = nullptr;
  const int32_t* logit_rows = nullptr;
  const int32_t* logit_start_loc = nullptr;
  const int32_t* drawn = nullptr;
};

/// By request of the step.
struct VerifyResults {
  // [num_requests]: drafts that were drawn too, up to the first that was not.
  int32_t* num_accepted = nullptr;
  // [num_requests]: tokens emitted. One more than accepted; only the accepted ones where none may
  // follow; up to the first that ends the request.
  int32_t* num_emitted = nullptr;
  int32_t* emitted = nullptr;  // [num_requests, 1 + max_drafts], what is past the count is -1
  int32_t* endings = nullptr;  // [num_requests]: DrawEnding
};

/// Why a request ends with this step, if it does.
enum DrawEnding : int32_t {
  kGoesOn = 0,
  kStopToken = 1,
  kNoneRemain = 2,  // remaining came down to 0
  kDeadEnd = 3,     // no token is allowed to follow
  kOverflow = 4,    // the logits have no largest finite number
};

/// Every slot of the step: lengths grow by the tokens whose keys are valid, the last token is the
/// last emitted one, drafts are none, remaining falls by what was emitted and is 0 where the
/// request ends. One launch. Throws Error for sizes outside the ranges above; otherwise returns
/// what the launch returned.
cudaError_t VerifyDrafts(const VerifyParams& params, const VerifyResults& results,
                         cudaStream_t stream);

}  // namespace outrider::cuda
