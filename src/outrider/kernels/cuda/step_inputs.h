// The rows of a step, made on the device: from the host's order of requests and from the state that
// each request slot has there. So the host can plan a step before the one before it has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

/// What the device knows of every request slot. VerifyDrafts (draw.h) moves it on; the host writes
/// a slot's entries when it admits a request.
struct SlotStates {
  int num_slots = 0;
  int max_drafts = 0;
  int32_t* tokens = nullptr;      // [num_slots, 1 + max_drafts]: the last token, then its drafts
  int32_t* num_drafts = nullptr;  // [num_slots]: 0 .. max_drafts
  int32_t* lengths = nullptr;     // [num_slots]: tokens in the cache; the last token's position
  int32_t* remaining = nullptr;   // [num_slots]: tokens that may still come; 0: finished
  // [num_slots, block_table_stride]: pages of the cache; those not allotted are negative
  const int32_t* block_tables = nullptr;
  int block_table_stride = 0;
};

/// One request of a step, as the host plans it.
struct alignas(16) StepRequest {
  int32_t slot = 0;
  /// Of a request that decodes: the most rows that the host has planned for, 1 or more. It gets
  /// 1 + its drafts, but no more rows than that and no more than tokens remain: none when finished.
  int32_t max_rows = 0;
  /// Of a piece of a prompt: its rows (0: the request decodes), where its tokens begin in
  /// prompt_tokens, the position of the first, and whether the last row's logits are wanted.
  int32_t prompt_rows = 0;
  int32_t first_prompt_token = 0;
  int32_t first_position = 0;
  int32_t wants_logits = 0;
};

/// The inputs of a step's operations, on the device. Rows stand in order of request, tokens of a
/// request in order of position.
struct StepArrays {
  int32_t* token_ids = nullptr;        // [max_rows]
  int32_t* positions = nullptr;        // [max_rows]
  int64_t* slot_mapping = nullptr;     // [max_rows]: page * page_size + offset
  int32_t* query_start_loc = nullptr;  // [num_requests + 1]
  int32_t* seq_lens = nullptr;         // [num_requests]: keys, the step's own tokens included
  int32_t* block_tables = nullptr;     // [num_requests, block_table_stride], up to seq_lens
  int32_t* num_rows = nullptr;         // [1]
  // Rows whose logits are wanted: all of a request that decodes, the last of a prompt.
  int32_t* logit_rows = nullptr;       // [max_rows]: the row
  int32_t* logit_positions = nullptr;  // [max_rows]: of the token that it predicts
  int32_t* logit_requests = nullptr;   // [max_rows]: its request's index in the step
  int32_t* logit_start_loc = nullptr;  // [num_requests + 1]
};

struct StepInputParams {
  int num_requests = 0;
  const StepRequest* requests = nullptr;   // [num_requests], on the device
  const int32_t* prompt_tokens = nullptr;  // on the device
  SlotStates slots;
  int page_size = 64;
  int num_pages = 0;  // of the cache
  int max_rows = 0;   // what the outputs have room for
};

/// Writes all of `inputs`; rows from num_rows on are left alone. A row whose page is not in
/// 0 .. num_pages - 1, a slot that there is not, and more rows than max_rows are bugs: the kernel
/// stops with an error. Throws Error for sizes that are not positive; otherwise returns what the
/// launch returned.
cudaError_t MakeStepInputs(const StepInputParams& params, const StepArrays& inputs,
                           cudaStream_t stream);

}  // namespace outrider::cuda
