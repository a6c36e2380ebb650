#include "outrider/execute/request_slot.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

void RequestSlot::Admit(const SlotAdmission& admission, std::span<const int32_t> eos_token_ids,
                        int32_t vocab_size, int32_t most_behind) {
  OUTRIDER_CHECK(parameters == nullptr, "slot {} is taken", admission.slot);
  parameters = admission.parameters;
  const auto prompt_length = static_cast<size_t>(parameters->prompt_length);
  tokens.reserve(static_cast<size_t>(parameters->max_total_tokens) +
                 static_cast<size_t>(most_behind));
  tokens.assign(admission.tokens.begin(), admission.tokens.end());
  num_computed = admission.cached_tokens;
  state_tokens = admission.cached_tokens;
  restores_state = admission.cached_tokens > 0;
  scores_prompt = sampling().prompt_logprobs.has_value() && tokens.size() == prompt_length;
  if (LogitsProcessors::Needed(sampling())) {
    processors.emplace(sampling(), admission.tokens.first(prompt_length), eos_token_ids,
                       vocab_size);
  }
  if (parameters->grammar.constrains()) {
    grammar.emplace(parameters->grammar, eos_token_ids, sampling().ignore_eos,
                    sampling().stop_token_ids);
    const bool taken = grammar->Advance(admission.tokens.subspan(prompt_length));
    OUTRIDER_CHECK(taken);
  }
}

void RequestSlot::Release() {
  parameters.reset();
  drafts.clear();
  draft_limit = DraftLimit::kNone;
  draft_probs.clear();
  processors.reset();
  grammar.reset();
  ended = false;
  prompt_logprobs.clear();
}

int32_t RequestSlot::RequestedDrafts(int32_t wanted) const {
  return std::min(wanted, parameters->num_speculative_tokens.value_or(wanted));
}

int32_t RequestSlot::UsefulDrafts(int32_t wanted) const {
  // The last of the remaining tokens is the bonus token of the verify step.
  const int32_t most = RequestedDrafts(wanted);
  return std::clamp(parameters->max_total_tokens - num_tokens() - 1, 0, most);
}

void RequestSlot::Take(size_t first, std::span<const int32_t> eos_token_ids,
                       RequestResult& result) {
  OUTRIDER_CHECK(first <= tokens.size());
  size_t next = first;
  for (const int32_t token : result.verified.tokens) {
    if (next == tokens.size()) tokens.emplace_back(token);
    tokens[next++] = token;
    ended = EndBy(sampling(), eos_token_ids, token) != TokenEnd::kGoesOn ||
            std::cmp_greater_equal(next, parameters->max_total_tokens);
    if (ended) break;
  }
  if (grammar) {
    result.grammar_failed = !grammar->Advance(KnownTokens(std::span(tokens).subspan(first)));
    result.grammar_complete = !result.grammar_failed && grammar->complete();
  }
  ended = ended || result.verified.dead_end || result.grammar_failed;
  if (ended) tokens.resize(next);
  if (scores_prompt) {
    result.prompt_logprobs.swap(prompt_logprobs);
    scores_prompt = false;
  }
}

}  // namespace outrider
