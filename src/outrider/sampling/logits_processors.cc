#include "outrider/sampling/logits_processors.h"

#include <algorithm>
#include <iterator>

#include "outrider/base/error.h"
#include "outrider/sampling/sampler.h"

namespace outrider {

namespace {

bool Penalises(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace

bool LogitsProcessors::Needed(const SamplingParams& params) {
  return params.allowed_token_ids || !params.bad_words.empty() || params.min_tokens > 0 ||
         !params.logit_bias.empty() || Penalises(params);
}

LogitsProcessors::LogitsProcessors(const SamplingParams& params, std::span<const int32_t> prompt,
                                   std::span<const int32_t> eos_token_ids, int32_t vocab_size)
    : allowed_(params.allowed_token_ids),
      bad_words_(params.bad_words),
      min_tokens_(static_cast<size_t>(params.min_tokens)),
      stops_(params.stop_token_ids),
      bias_(params.logit_bias),
      repetition_penalty_(params.repetition_penalty),
      presence_penalty_(params.presence_penalty),
      frequency_penalty_(params.frequency_penalty) {
  if (allowed_) std::sort(allowed_->begin(), allowed_->end());
  // A checkpoint may name EOS ids that its head has no row for.
  std::copy_if(eos_token_ids.begin(), eos_token_ids.end(), std::back_inserter(stops_),
               [&](int32_t id) { return id >= 0 && id < vocab_size; });
  if (!Penalises(params)) return;
  const size_t distinct = prompt.size() + static_cast<size_t>(params.max_tokens);
  counts_.emplace(repetition_penalty_ != 1 ? prompt : std::span<const int32_t>(),
                  std::min(distinct, static_cast<size_t>(vocab_size)));
}

void LogitsProcessors::Apply(const TokenHistory& history, std::span<float> logits) {
  if (allowed_) MaskAllBut(*allowed_, logits);
  MaskBadWords(history, logits);
  if (history.num_output() < min_tokens_) {
    for (const int32_t token : stops_) logits[static_cast<size_t>(token)] = kForbidden;
  }
  for (const TokenBias& bias : bias_) logits[static_cast<size_t>(bias.token)] += bias.value;
  if (counts_) Penalise(history, logits);
}

void LogitsProcessors::MaskAllBut(std::span<const int32_t> allowed, std::span<float> logits) const {
  auto next = logits.begin();
  for (const int32_t token : allowed) {
    const auto place = logits.begin() + token;
    if (next < place) std::fill(next, place, kForbidden);
    next = place + 1;
  }
  std::fill(next, logits.end(), kForbidden);
}

void LogitsProcessors::MaskBadWords(const TokenHistory& history, std::span<float> logits) const {
  for (const std::vector<int32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;  // tokens that must have come for the last to be bad
    if (before > history.num_output()) continue;
    bool begun = true;
    for (size_t i = 0; i < before && begun; ++i) begun = word[i] == history.FromEnd(before - i);
    if (begun) logits[static_cast<size_t>(word.back())] = kForbidden;
  }
}

void LogitsProcessors::Penalise(const TokenHistory& history, std::span<float> logits) {
  const std::span<const int32_t> output = history.tokens.subspan(history.prompt_length);
  OUTRIDER_CHECK(num_counted_ <= output.size());
  while (num_counted_ < output.size()) counts_->Add(output[num_counted_++]);
  for (const int32_t token : history.drafts) counts_->Add(token);
  for (const TokenCounts::Entry& entry : counts_->entries()) {
    float& x = logits[static_cast<size_t>(entry.token)];
    x = x > 0 ? x / repetition_penalty_ : x * repetition_penalty_;
    if (entry.count > 0) {
      x -= frequency_penalty_ * static_cast<float>(entry.count);
      x -= presence_penalty_;
    }
  }
  for (const int32_t token : history.drafts) counts_->Remove(token);
}

}  // namespace outrider
