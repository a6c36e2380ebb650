#include "outrider/execute/step_layout.h"

#include "outrider/base/error.h"
#include "outrider/base/prefetch.h"

namespace outrider {

namespace {

/// What a planned request runs, from the state of its slot.
RequestWork WorkOf(const PlannedRequest& planned, const RequestSlot& slot) {
  const int32_t context = slot.num_computed;
  OUTRIDER_CHECK(planned.context_length <= context && context <= planned.most_context_length);
  const auto num_drafts = static_cast<int32_t>(planned.samples ? slot.drafts.size() : 0);
  OUTRIDER_CHECK(num_drafts <= planned.num_drafts);
  OUTRIDER_CHECK(!planned.samples || context + planned.num_tokens == slot.num_tokens());
  return {
      .slot = planned.slot,
      .phase = planned.phase,
      .context_length = context,
      .tokens = std::span(slot.tokens)
                    .subspan(static_cast<size_t>(context), static_cast<size_t>(planned.num_tokens)),
      .draft_tokens = std::span(slot.drafts).first(static_cast<size_t>(num_drafts)),
      .samples = planned.samples,
      .block_tables = planned.tables->blocks(),
      .prompt_logits = planned.phase != Phase::kDecode && slot.scores_prompt,
      .state = {.tables = &planned.tables->state(),
                .tokens = slot.state_tokens,
                .restores = slot.restores_state}};
}

}  // namespace

void StepLayout::Assign(const StepPlan& plan, SlotTable& slots, std::span<RequestResult> results) {
  work_.clear();
  requests_.clear();
  tells_experts_ = false;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& planned = plan.requests[i];
    RequestSlot& slot = slots.At(planned.slot);
    RequestResult& result = results[i];
    // Also of a token that is not read it is known whether it is the last.
    result.ran = slot.parameters != nullptr && !slot.ended &&
                 slot.num_tokens() < slot.parameters->max_total_tokens;
    result.drafts.clear();
    result.grammar_failed = result.grammar_complete = false;
    result.prompt_logprobs.clear();
    result.experts.clear();
    if (!result.ran) continue;
    result.draft_limit = slot.draft_limit;
    if (planned.phase != Phase::kDecode && slots.have_drafts()) {
      result.draft_limit = DraftLimit::kPrompt;
    }
    tells_experts_ = tells_experts_ || slot.parameters->experts_from;
    work_.push_back(WorkOf(planned, slot));
    slot.state_tokens = StateTokens(work_.back().context_length + planned.num_tokens);
    slot.restores_state = false;
    requests_.push_back({&slot, &result, i, planned.publishes});
    // BatchLayout reads these next, for one request after the other.
    const RequestWork& work = work_.back();
    Prefetch(work.tokens.data());
    Prefetch(work.draft_tokens.data());
    for (size_t g = 0; g < work.block_tables.size(); ++g) {
      Prefetch(work.block_tables[g].data() +
               work.context_length / rows_.groups()[g].tokens_per_block);
    }
  }
  rows_.Assign(work_);
}

}  // namespace outrider
