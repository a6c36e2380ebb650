#include "outrider/engine/request_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

std::shared_ptr<const RequestParameters> ParametersOf(GenerationRequest& request,
                                                      int32_t max_model_len, uint64_t seed) {
  const auto prompt_length = static_cast<int32_t>(request.prompt_token_ids.size());
  const int64_t wanted = int64_t{prompt_length} + request.sampling.max_tokens;
  return std::make_shared<const RequestParameters>(RequestParameters{
      .sampling = std::move(request.sampling),
      .grammar = std::move(request.grammar),
      .seed = seed,
      .prompt_length = prompt_length,
      .max_total_tokens = static_cast<int32_t>(std::min<int64_t>(max_model_len, wanted)),
      .num_speculative_tokens = request.num_speculative_tokens,
      .always_drafts = request.always_drafts,
      .experts_from = request.experts_from});
}

/// Whether one of a prompt's rows has logits that overflow: no log-probability of it is a number.
bool HasOverflownRow(const std::vector<PositionLogprobs>& prompt) {
  return std::ranges::any_of(
      prompt, [](const PositionLogprobs& row) { return std::isnan(row.chosen.logprob); });
}

}  // namespace

RequestState::RequestState(RequestId id, GenerationRequest request, OutputSink sink,
                           const Tokenizer* tokenizer, std::span<const int32_t> eos_token_ids,
                           int32_t max_model_len, uint64_t seed, RoutedShape routed)
    : id_(id),
      parameters_(ParametersOf(request, max_model_len, seed)),
      cache_salt_(std::move(request.cache_salt)),
      priority_(request.priority),
      trace_steps_(request.trace_steps),
      tokens_(std::move(request.prompt_token_ids)),
      sink_(std::move(sink)),
      eos_token_ids_(eos_token_ids),
      stop_matcher_(
          sampling().stop, sampling().include_stop_str_in_output,
          request.stop_scope && !sampling().stop.empty() ? request.stop_scope() : nullptr) {
  if (tokenizer != nullptr) {
    detokenizer_.emplace(*tokenizer, sampling().skip_special_tokens,
                         sampling().kept_special_tokens);
  }
  tokens_.reserve(static_cast<size_t>(max_total_tokens()));
  stats_.prompt_tokens = prompt_length();
  experts_ = {.from = parameters_->experts_from.value_or(0), .shape = routed};
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

int32_t RequestState::Emit(const RequestResult& result) {
  const VerifiedTokens& verified = result.verified;
  const auto num_drafts = static_cast<int32_t>(result.drafts.size());
  OutputDelta& delta = delta_;
  delta.token_ids.clear();
  delta.token_ids.reserve(verified.tokens.capacity());
  delta.text.clear();
  delta.logprobs.clear();
  delta.prompt_logprobs = result.prompt_logprobs;
  delta.num_draft_tokens = num_drafts;
  delta.num_accepted_tokens = verified.num_accepted;
  stats_.speculation.AddStep(num_drafts, verified.num_accepted);
  if (num_tokens() == prompt_length()) stats_.first_token_seconds = Elapsed();
  for (size_t i = 0; i < verified.tokens.size() && !finished(); ++i) {
    if (sampling().logprobs) delta.logprobs.push_back(verified.logprobs[i]);
    TakeToken(verified.tokens[i], delta);
  }
  if (result.grammar_failed) {
    EndEarly(FinishReason::kError, delta);
    delta.stop_reason = std::string(kGrammarFailed);
  } else if (HasOverflownRow(delta.prompt_logprobs) || (verified.overflown && !finished())) {
    EndEarly(FinishReason::kError, delta);
    delta.stop_reason = std::string(kLogitsOverflown);
  } else if (verified.dead_end && !finished()) {
    // A whole text that nothing can follow is an end like any other.
    if (!result.grammar_complete) delta.stop_reason = std::string(kNoTokenAllowed);
    Finish(FinishReason::kStop, delta);
  }
  const auto taken = static_cast<int32_t>(delta.token_ids.size());
  if (trace_steps_) {
    delta.steps.assign(1, {result.drafts, verified.num_accepted, taken, result.draft_limit});
  }
  sink_(id_, std::move(delta));
  return taken;
}

void RequestState::TakeExperts(const RequestResult& result) {
  if (!parameters_->experts_from || result.experts.empty()) return;
  // After a preemption tokens are computed again.
  const int64_t size = experts_.shape.RowSize();
  const int64_t next = experts_.from + static_cast<int64_t>(experts_.ids.size()) / size;
  const auto rows = static_cast<int64_t>(result.experts.size()) / size;
  OUTRIDER_CHECK(result.experts_from <= next);
  const int64_t known = std::min(next - result.experts_from, rows);
  const auto fresh = std::span(result.experts).subspan(static_cast<size_t>(known * size));
  experts_.ids.insert(experts_.ids.end(), fresh.begin(), fresh.end());
}

void RequestState::Fail(const std::string& reason) {
  delta_ = {};
  EndEarly(FinishReason::kError, delta_);
  delta_.stop_reason = reason;
  sink_(id_, std::move(delta_));
}

void RequestState::TakeToken(int32_t token, OutputDelta& delta) {
  tokens_.push_back(token);
  delta.token_ids.push_back(token);
  CountByVersion();
  const TokenEnd end = EndBy(sampling(), eos_token_ids_, token);
  // The token that ends a request is not part of its text.
  if (detokenizer_ && end == TokenEnd::kGoesOn) {
    // Stop strings are looked for in what follows the first min_tokens tokens.
    const bool may_stop = num_tokens() - prompt_length() > sampling().min_tokens;
    delta.text += stop_matcher_.Push(detokenizer_->Push(token), may_stop);
  }
  if (stop_matcher_.stopped()) {
    delta.stop_reason = sampling().stop[*stop_matcher_.stopped_by()];
    Finish(FinishReason::kStop, delta);
  } else if (end != TokenEnd::kGoesOn) {
    if (end == TokenEnd::kStopToken) delta.stop_reason = token;
    Finish(FinishReason::kStop, delta);
  } else if (num_tokens() >= max_total_tokens()) {
    Finish(FinishReason::kLength, delta);
  }
}

void RequestState::CountByVersion() {
  std::vector<WeightSpan>& spans = stats_.weight_spans;
  if (weight_version_ == nullptr) return;
  if (spans.empty() || spans.back().version != *weight_version_) {
    spans.push_back({.version = *weight_version_});
  }
  ++spans.back().tokens;
}

void RequestState::Finish(FinishReason reason, OutputDelta& delta) {
  finish_reason_ = reason;
  if (detokenizer_ && !stop_matcher_.stopped()) {
    delta.text += stop_matcher_.End(detokenizer_->Flush());
    if (stop_matcher_.stopped()) {
      delta.stop_reason = sampling().stop[*stop_matcher_.stopped_by()];
      finish_reason_ = FinishReason::kStop;
    }
  }
  stats_.completion_tokens = num_tokens() - prompt_length();
  stats_.total_seconds = Elapsed();
  delta.finish_reason = finish_reason_;
  delta.stats = stats_;
  if (!parameters_->experts_from) return;
  // A step may have run rows behind the end.
  const int64_t size = experts_.shape.RowSize();
  const auto taken = static_cast<int64_t>(experts_.ids.size()) / size;
  experts_.tokens =
      static_cast<int32_t>(std::clamp<int64_t>(num_tokens() - 1 - experts_.from, 0, taken));
  experts_.ids.resize(static_cast<size_t>(experts_.tokens * size));
  delta.experts = std::make_shared<const RoutedExperts>(std::move(experts_));
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
