#include "outrider/engine/generation.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  OUTRIDER_CHECK(false);
}

double SpeculationCounts::MeanAcceptanceLength() const {
  if (num_drafts == 0) return 1;
  return 1 + static_cast<double>(num_accepted_tokens) / static_cast<double>(num_drafts);
}

void SpeculationCounts::AddStep(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  ++num_drafts;
  num_draft_tokens += drafted;
  num_accepted_tokens += accepted;
  const auto positions = static_cast<size_t>(drafted);
  if (accepted_per_position.size() < positions) accepted_per_position.resize(positions, 0);
  for (int32_t i = 0; i < accepted; ++i) ++accepted_per_position[static_cast<size_t>(i)];
}

}  // namespace outrider
