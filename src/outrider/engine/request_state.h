// Everything the engine knows of one request: its tokens, its text so far, its figures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/sampling/verifier.h"
#include "outrider/text/stop_matcher.h"
#include "outrider/text/stream_detokenizer.h"

namespace outrider {

class RequestState {
 public:
  using Clock = std::chrono::steady_clock;

  /// `eos_token_ids` end the request unless it ignores them; max_model_len bounds its tokens.
  /// tokenizer may be null: then there is no text.
  RequestState(RequestId id, GenerationRequest request, OutputSink sink, const Tokenizer* tokenizer,
               const std::vector<int32_t>& eos_token_ids, int32_t max_model_len, int32_t vocab_size,
               uint64_t seed);

  RequestId id() const { return id_; }
  const SamplingParams& sampling() const { return sampling_; }
  uint64_t seed() const { return seed_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t prompt_length() const { return prompt_length_; }
  int64_t cached_tokens() const { return stats_.cached_tokens; }
  int32_t max_total_tokens() const { return max_total_tokens_; }
  const std::string& cache_salt() const { return cache_salt_; }
  int32_t priority() const { return priority_; }
  /// What the sampling fields do to rows; null when they do nothing.
  LogitsProcessors* processors() { return processors_ ? &*processors_ : nullptr; }
  /// Which tokens rows may be drawn from; null when all.
  RequestGrammar* grammar() { return grammar_ ? &*grammar_ : nullptr; }

  /// Whether rows of the prompt need logits, for prompt_logprobs: then every prompt token must be
  /// computed, none taken from a prefix cache. Until the first token was emitted.
  bool needs_prompt_logits() const {
    return sampling_.prompt_logprobs.has_value() && num_tokens() == prompt_length_;
  }
  /// The log-probabilities of the prompt's tokens so far, from the second token on. A prompt that
  /// is computed again from its start fills it again.
  std::vector<PositionLogprobs>& prompt_logprobs() { return prompt_logprobs_; }

  /// How many drafts of `wanted` the request can still use: it ends at max_tokens or max_model_len.
  int32_t UsefulDrafts(int32_t wanted) const;

  /// Takes the tokens that a step verified, up to the first that ends the request, and delivers
  /// them. Returns how many were taken.
  int32_t Emit(const VerifiedTokens& verified, std::span<const int32_t> verified_drafts);

  /// Ends the request early; delivers the last delta.
  void Abort();

  bool finished() const { return finish_reason_.has_value(); }
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }

  /// True the first time.
  bool Scheduled(int32_t cached_tokens);
  void Preempted() { ++stats_.num_preemptions; }

  std::vector<int32_t> drafts;          // to be verified next, after tokens()
  std::vector<float> draft_probs;       // [k, vocab] what `drafts` were drawn from; empty: certain
  std::optional<BlockKeys> block_keys;  // of tokens(); none when no prefix may be shared

 private:
  void TakeToken(int32_t token, OutputDelta& delta);
  void Finish(FinishReason reason, OutputDelta& delta);
  void EndEarly(FinishReason reason, OutputDelta& delta);
  double Elapsed() const;

  RequestId id_;
  SamplingParams sampling_;
  std::string cache_salt_;
  int32_t priority_;
  std::optional<int32_t> num_speculative_tokens_;
  bool trace_steps_;
  bool scheduled_ = false;
  uint64_t seed_;
  std::vector<int32_t> tokens_;
  int32_t prompt_length_;
  int32_t max_total_tokens_;
  OutputSink sink_;
  const std::vector<int32_t>& eos_token_ids_;
  std::optional<LogitsProcessors> processors_;
  std::optional<RequestGrammar> grammar_;  // after the emitted tokens
  std::vector<PositionLogprobs> prompt_logprobs_;
  std::optional<StreamDetokenizer> detokenizer_;
  StopMatcher stop_matcher_;
  std::optional<FinishReason> finish_reason_;
  Clock::time_point submitted_ = Clock::now();
  RequestStats stats_;
  OutputDelta delta_;  // of the step at hand; keeps its memory when the sink leaves it
};

}  // namespace outrider
