// What the drawn tokens of a step come to: drafts are accepted up to the first that was not drawn.
// It is kept by request for the passes that follow, which can begin without the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct VerifiedRequest {
  // Where in kept_tokens its numbers go; negative: nowhere.
  int32_t last_token;  // what was drawn behind the accepted drafts, negative where nothing may be
  int32_t drawn;     // what each of its rows gave, one after the other: an accepted draft, or what
                     // was drawn
  int32_t rejected;  // how many drafts were not accepted
  int32_t last_row;  // the entry of head_rows of the row that drew the last token
  /// How many drafts are accepted, whatever was drawn; negative: those that were drawn.
  int32_t given_count;
};

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
  const int32_t* head_rows = nullptr;  // [rows of logits]: which row of the step each was made of
  const VerifiedRequest* requests = nullptr;  // [num_requests]
  /// Result [num_requests]: drafts that were drawn too, up to the first that was not.
  int32_t* num_accepted = nullptr;
};

/// Every request has one row of logits or more. One launch. Throws Error for num_requests below 1;
/// otherwise returns what the launch returned.
cudaError_t VerifyDrafts(const VerifyParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
