// Everything the engine knows of one request: its tokens, its text so far, its figures.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/execute/executor.h"
#include "outrider/text/scoped_stop_matcher.h"
#include "outrider/text/stream_detokenizer.h"

namespace outrider {

class RequestState {
 public:
  using Clock = std::chrono::steady_clock;

  /// `eos_token_ids` end the request unless it ignores them; max_model_len bounds its tokens.
  /// tokenizer may be null: then there is no text. `routed` is of the experts that results tell.
  RequestState(RequestId id, GenerationRequest request, OutputSink sink, const Tokenizer* tokenizer,
               std::span<const int32_t> eos_token_ids, int32_t max_model_len, uint64_t seed,
               RoutedShape routed = {});

  RequestId id() const { return id_; }
  const std::shared_ptr<const RequestParameters>& parameters() const { return parameters_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t prompt_length() const { return parameters_->prompt_length; }
  int64_t cached_tokens() const { return stats_.cached_tokens; }
  int32_t max_total_tokens() const { return parameters_->max_total_tokens; }
  const std::string& cache_salt() const { return cache_salt_; }
  int32_t priority() const { return priority_; }
  /// Most tokens of the prompt that may come from a prefix cache. Others are computed, because
  /// prompt_logprobs need their logits or results tell their experts.
  int32_t most_shared() const {
    if (sampling().prompt_logprobs) return 0;
    return parameters_->experts_from.value_or(prompt_length());
  }

  /// Takes the tokens that a step verified, up to the first that ends the request, and delivers
  /// them. Returns how many were taken.
  int32_t Emit(const RequestResult& result);

  /// Keeps the experts of the tokens that a step has run, where it does not have them yet.
  void TakeExperts(const RequestResult& result);
  /// Drops the experts of weights that have drawn no token. Called when weights change.
  void ForgetExperts() {
    if (num_tokens() == prompt_length()) experts_.ids.clear();
  }

  /// Ends the request early; delivers the last delta.
  void Abort();

  /// Ends the request because the engine cannot go on; the last delta says why.
  void Fail(const std::string& reason);

  bool finished() const { return finish_reason_.has_value(); }
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }

  /// Notes that the request runs. True the first time.
  bool Scheduled(int32_t cached_tokens);
  void Preempted() { ++stats_.num_preemptions; }
  /// Takes the version of the weights that draw its next tokens.
  void SetWeightVersion(std::shared_ptr<const std::string> version) {
    weight_version_ = std::move(version);
  }

  std::optional<int32_t> slot;          // while it runs
  std::optional<BlockKeys> block_keys;  // of tokens(); none without prefix caching

 private:
  const SamplingParams& sampling() const { return parameters_->sampling; }
  void TakeToken(int32_t token, OutputDelta& delta);
  void CountByVersion();
  void Finish(FinishReason reason, OutputDelta& delta);
  void EndEarly(FinishReason reason, OutputDelta& delta);
  double Elapsed() const;

  RequestId id_;
  std::shared_ptr<const RequestParameters> parameters_;
  std::string cache_salt_;
  int32_t priority_;
  bool trace_steps_;
  bool scheduled_ = false;
  std::vector<int32_t> tokens_;
  OutputSink sink_;
  std::span<const int32_t> eos_token_ids_;
  std::optional<StreamDetokenizer> detokenizer_;
  ScopedStopMatcher stop_matcher_;
  std::optional<FinishReason> finish_reason_;
  std::shared_ptr<const std::string> weight_version_;
  Clock::time_point submitted_ = Clock::now();
  RequestStats stats_;
  RoutedExperts experts_;  // so far, from the first token that is asked for on
  OutputDelta delta_;      // of the step at hand; keeps its memory when the sink leaves it
};

}  // namespace outrider
