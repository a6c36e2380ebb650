// What the drawn tokens of a step come to: drafts are accepted up to the first that was not drawn,
// and each request's last token is kept for the next step, which can begin without the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct VerifyParams {
  int num_requests = 0;
  // As DrawParams has them, and what was drawn (DrawResults::tokens).
  const int32_t* token_ids = nullptr;
  const int32_t* logit_rows = nullptr;
  const int32_t* logit_start_loc = nullptr;
  const int32_t* drawn = nullptr;
  /// Tokens by place (ops/tokens_on_device.h). A number below -1 in token_ids stands for
  /// kept_tokens[-2 - number], or for 0 where that is negative.
  int32_t* kept_tokens = nullptr;
  /// [num_requests]: where the last token goes: what was drawn behind the accepted drafts, negative
  /// where no token may follow. A negative place: nowhere.
  const int32_t* last_places = nullptr;
  /// Result [num_requests]: drafts that were drawn too, up to the first that was not.
  int32_t* num_accepted = nullptr;
};

/// Every request has one row of logits or more. One launch. Throws Error for num_requests below 1;
/// otherwise returns what the launch returned.
cudaError_t VerifyDrafts(const VerifyParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
