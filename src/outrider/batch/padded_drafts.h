// Where a drafter goes on after verification when rejected rows stay in the batch: shapes follow
// from what was scheduled, only the row that is read moves (the padded form, as GPU graphs need).
#pragma once

#include <cstdint>

#include "outrider/batch/batch_layout.h"

namespace outrider {

struct DraftStart {
  int32_t num_valid = 0;     // tokens that the step emitted for the request: accepted + 1, or 0
  int32_t num_rejected = 0;  // drafts found wrong; as many rows at the request's end are void
  int32_t sample_row = 0;    // row of the last valid token
  int32_t frontier = 0;      // its position; draft pass i (from 1) writes position frontier + i
};

/// After a step in which `num_accepted` of the request's drafts were right. A chunk inside a prompt
/// rejects nothing and emits nothing.
constexpr DraftStart StartOfDrafts(const RequestRows& rows, int32_t num_accepted) {
  const int32_t rejected = rows.num_drafts - num_accepted;
  return {.num_valid = rows.num_logits_rows > 0 ? num_accepted + 1 : 0,
          .num_rejected = rejected,
          .sample_row = rows.first_row + rows.query_length - 1 - rejected,
          .frontier = rows.context_length + rows.query_length - 1 - rejected};
}

}  // namespace outrider
