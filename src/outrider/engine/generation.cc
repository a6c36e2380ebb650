#include "outrider/engine/generation.h"

#include <algorithm>
#include <iterator>

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

void JoinDeltas(OutputDelta&& later, OutputDelta* delta) {
  delta->token_ids.insert(delta->token_ids.end(), later.token_ids.begin(), later.token_ids.end());
  delta->text += later.text;
  delta->logprobs.insert(delta->logprobs.end(), std::make_move_iterator(later.logprobs.begin()),
                         std::make_move_iterator(later.logprobs.end()));
  delta->prompt_logprobs.insert(delta->prompt_logprobs.end(),
                                std::make_move_iterator(later.prompt_logprobs.begin()),
                                std::make_move_iterator(later.prompt_logprobs.end()));
  delta->num_draft_tokens += later.num_draft_tokens;
  delta->num_accepted_tokens += later.num_accepted_tokens;
  delta->steps.insert(delta->steps.end(), std::make_move_iterator(later.steps.begin()),
                      std::make_move_iterator(later.steps.end()));
  if (later.finish_reason) {
    delta->finish_reason = later.finish_reason;
    delta->stop_reason = std::move(later.stop_reason);
    delta->stats = std::move(later.stats);
    delta->experts = std::move(later.experts);
  }
}

}  // namespace outrider
