#include "outrider/engine/request_state.h"

#include <algorithm>
#include <utility>

namespace outrider {

RequestState::RequestState(RequestId id, GenerationRequest request, OutputSink sink,
                           const Tokenizer* tokenizer, const std::vector<int32_t>& eos_token_ids,
                           int32_t max_model_len, int32_t vocab_size, uint64_t seed)
    : id_(id),
      sampling_(std::move(request.sampling)),
      cache_salt_(std::move(request.cache_salt)),
      priority_(request.priority),
      num_speculative_tokens_(request.num_speculative_tokens),
      trace_steps_(request.trace_steps),
      seed_(seed),
      tokens_(std::move(request.prompt_token_ids)),
      prompt_length_(static_cast<int32_t>(tokens_.size())),
      max_total_tokens_(static_cast<int32_t>(
          std::min<int64_t>(max_model_len, int64_t{prompt_length_} + sampling_.max_tokens))),
      sink_(std::move(sink)),
      eos_token_ids_(eos_token_ids),
      stop_matcher_(sampling_.stop, sampling_.include_stop_str_in_output) {
  if (LogitsProcessors::Needed(sampling_)) {
    processors_.emplace(sampling_, tokens_, eos_token_ids, vocab_size);
  }
  if (request.grammar.grammar != nullptr) {
    grammar_.emplace(request.grammar, eos_token_ids, sampling_.ignore_eos,
                     sampling_.stop_token_ids);
  }
  if (tokenizer != nullptr) {
    detokenizer_.emplace(*tokenizer, sampling_.skip_special_tokens, sampling_.kept_special_tokens);
  }
  tokens_.reserve(static_cast<size_t>(max_total_tokens_));
  stats_.prompt_tokens = prompt_length_;
}

double RequestState::Elapsed() const {
  return std::chrono::duration<double>(Clock::now() - submitted_).count();
}

bool RequestState::Scheduled(int32_t cached_tokens) {
  if (std::exchange(scheduled_, true)) return false;
  stats_.queue_seconds = Elapsed();
  stats_.cached_tokens = cached_tokens;
  return true;
}

int32_t RequestState::UsefulDrafts(int32_t wanted) const {
  // The last of the remaining tokens is the bonus token of the verify step.
  const int32_t most = std::min(wanted, num_speculative_tokens_.value_or(wanted));
  return std::clamp(max_total_tokens_ - num_tokens() - 1, 0, most);
}

int32_t RequestState::Emit(const VerifiedTokens& verified,
                           std::span<const int32_t> verified_drafts) {
  const auto num_drafts = static_cast<int32_t>(verified_drafts.size());
  OutputDelta& delta = delta_;
  delta.token_ids.clear();
  delta.token_ids.reserve(verified.tokens.capacity());
  delta.text.clear();
  delta.logprobs.clear();
  delta.prompt_logprobs.clear();
  delta.num_draft_tokens = num_drafts;
  delta.num_accepted_tokens = verified.num_accepted;
  stats_.speculation.AddStep(num_drafts, verified.num_accepted);
  if (num_tokens() == prompt_length_) {
    stats_.first_token_seconds = Elapsed();
    delta.prompt_logprobs = std::move(prompt_logprobs_);
  }
  for (size_t i = 0; i < verified.tokens.size() && !finished(); ++i) {
    if (sampling_.logprobs) delta.logprobs.push_back(verified.logprobs[i]);
    TakeToken(verified.tokens[i], delta);
  }
  if (grammar_ && !grammar_->Advance(delta.token_ids)) {
    EndEarly(FinishReason::kError, delta);
    delta.stop_reason = std::string(kGrammarFailed);
  } else if (verified.overflown && !finished()) {
    EndEarly(FinishReason::kError, delta);
    delta.stop_reason = std::string(kLogitsOverflown);
  } else if (verified.dead_end && !finished()) {
    // A whole text that nothing can follow is an end like any other.
    if (!(grammar_ && grammar_->complete())) delta.stop_reason = std::string(kNoTokenAllowed);
    Finish(FinishReason::kStop, delta);
  }
  const auto taken = static_cast<int32_t>(delta.token_ids.size());
  if (trace_steps_) {
    delta.steps.assign(
        1, {{verified_drafts.begin(), verified_drafts.end()}, verified.num_accepted, taken});
  }
  sink_(id_, std::move(delta));
  return taken;
}

void RequestState::TakeToken(int32_t token, OutputDelta& delta) {
  tokens_.push_back(token);
  delta.token_ids.push_back(token);
  const auto& stops = sampling_.stop_token_ids;
  const bool eos = !sampling_.ignore_eos && std::find(eos_token_ids_.begin(), eos_token_ids_.end(),
                                                      token) != eos_token_ids_.end();
  const bool stop_token = eos || std::find(stops.begin(), stops.end(), token) != stops.end();
  // The token that ends a request is not part of its text.
  if (detokenizer_ && !stop_token) {
    std::string text = detokenizer_->Push(token);
    // Stop strings are looked for in what follows the first min_tokens tokens.
    const bool may_stop = num_tokens() - prompt_length_ > sampling_.min_tokens;
    delta.text += may_stop ? stop_matcher_.Push(text) : std::move(text);
  }
  if (stop_matcher_.stopped()) {
    delta.stop_reason = sampling_.stop[*stop_matcher_.stopped_by()];
    Finish(FinishReason::kStop, delta);
  } else if (stop_token) {
    if (!eos) delta.stop_reason = token;
    Finish(FinishReason::kStop, delta);
  } else if (num_tokens() >= max_total_tokens_) {
    Finish(FinishReason::kLength, delta);
  }
}

void RequestState::Finish(FinishReason reason, OutputDelta& delta) {
  finish_reason_ = reason;
  if (detokenizer_ && !stop_matcher_.stopped()) {
    delta.text += stop_matcher_.Push(detokenizer_->Flush());
    if (stop_matcher_.stopped()) {
      delta.stop_reason = sampling_.stop[*stop_matcher_.stopped_by()];
      finish_reason_ = FinishReason::kStop;
    } else {
      delta.text += stop_matcher_.Flush();
    }
  }
  stats_.completion_tokens = num_tokens() - prompt_length_;
  stats_.total_seconds = Elapsed();
  delta.finish_reason = finish_reason_;
  delta.stats = stats_;
}

// Whatever its text ends with.
void RequestState::EndEarly(FinishReason reason, OutputDelta& delta) {
  Finish(reason, delta);
  finish_reason_ = delta.finish_reason = reason;
}

void RequestState::Abort() {
  OutputDelta delta;
  EndEarly(FinishReason::kAbort, delta);
  sink_(id_, std::move(delta));
}

}  // namespace outrider
