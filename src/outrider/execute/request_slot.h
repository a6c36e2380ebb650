// The request in a slot of an executor: what steps read and change of it. All of it follows from
// the parameters and the tokens, so a preempted request brings nothing else with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "outrider/execute/executor.h"
#include "outrider/sampling/logits_processors.h"

namespace outrider {

struct RequestSlot {
  std::shared_ptr<const RequestParameters> parameters;  // null: the slot is free
  std::vector<TokenRef> tokens;                         // prompt and output; the last ones may be
                                                        // on the device
  int32_t num_computed = 0;                             // of them, those whose KV is cached
  int32_t state_tokens = 0;      // that the running state holds (kv/running_state.h)
  bool restores_state = false;   // it is still the one that was found in the prefix cache
  std::vector<TokenRef> drafts;  // to be verified next, after `tokens`; may
                                 // be on the device, but with a grammar
  DraftLimit draft_limit = DraftLimit::kNone;  // why there are no more of them
  std::vector<float> draft_probs;              // [k, vocab] of rejection sampling; empty: certain
  std::optional<LogitsProcessors> processors;  // what the sampling fields do to rows, if anything
  std::optional<RequestGrammar> grammar;       // after `tokens`
  bool ended = false;                          // by a token, its length or a dead end
  bool scores_prompt = false;                  // rows of the prompt need logits, too
  std::vector<PositionLogprobs> prompt_logprobs;  // so far

  const SamplingParams& sampling() const { return parameters->sampling; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }

  /// most_behind: tokens of a step that may stand behind those of the request, until it is known
  /// which of them stay.
  void Admit(const SlotAdmission& admission, std::span<const int32_t> eos_token_ids,
             int32_t vocab_size, int32_t most_behind);
  void Release();

  /// How many drafts the request asks for, `wanted` at most.
  int32_t RequestedDrafts(int32_t wanted) const;

  /// How many of these fit before the request ends.
  int32_t UsefulDrafts(int32_t wanted) const;

  /// Advances by what a step verified. Its tokens are put at index `first` and behind, in place of
  /// what stands there. Tokens behind one that ends the request are dropped.
  void Take(size_t first, std::span<const int32_t> eos_token_ids, RequestResult& result);
};

}  // namespace outrider
