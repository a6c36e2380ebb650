// What an executor keeps of the request in a slot: what steps read and change. It follows from the
// parameters and the tokens alone, so a preempted request starts with nothing of its life before.
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

  /// most_behind: tokens that may stand in `tokens` for a moment, behind those of the request.
  void Admit(const SlotAdmission& admission, std::span<const int32_t> eos_token_ids,
             int32_t vocab_size, int32_t most_behind);
  void Release();

  /// How many drafts of `wanted` the request asks for.
  int32_t RequestedDrafts(int32_t wanted) const;

  /// How many of these it can still use.
  int32_t UsefulDrafts(int32_t wanted) const;

  /// Goes on by what a step verified, up to the token that ends the request: its tokens from index
  /// `first` on, where others may stand for them. Behind the end of a request nothing is kept.
  void Take(size_t first, std::span<const int32_t> eos_token_ids, RequestResult& result);
};

}  // namespace outrider
