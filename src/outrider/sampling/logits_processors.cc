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
  ForbidTokens(history, static_cast<int32_t>(logits.size()), [&](int32_t first, int32_t end) {
    std::fill(logits.begin() + first, logits.begin() + end, kForbidden);
  });
  for (const TokenBias& bias : bias_) logits[static_cast<size_t>(bias.token)] += bias.value;
  if (counts_) Penalise(history, logits);
}

template <typename ForbidRange>
void LogitsProcessors::ForbidTokens(const TokenHistory& history, int32_t vocab_size,
                                    ForbidRange forbid) const {
  if (allowed_) {
    int32_t next = 0;
    for (const int32_t token : *allowed_) {
      if (next < token) forbid(next, token);
      next = token + 1;
    }
    if (next < vocab_size) forbid(next, vocab_size);
  }
  for (const std::vector<int32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;  // tokens that must have come for the last to be bad
    if (before > history.num_output()) continue;
    bool begun = true;
    for (size_t i = 0; i < before && begun; ++i) begun = word[i] == history.FromEnd(before - i);
    if (begun) forbid(word.back(), word.back() + 1);
  }
  if (history.num_output() < min_tokens_) {
    for (const int32_t token : stops_) forbid(token, token + 1);
  }
}

bool LogitsProcessors::MayForbid(const TokenHistory& history) const {
  return allowed_ || !bad_words_.empty() || min_tokens_ > history.num_output();
}

void LogitsProcessors::Forbid(const TokenHistory& history, std::span<uint32_t> mask) const {
  constexpr int32_t kBits = 32;
  const auto clear = [&](int32_t word, uint32_t bits) { mask[static_cast<size_t>(word)] &= ~bits; };
  ForbidTokens(history, static_cast<int32_t>(mask.size()) * kBits, [&](int32_t first, int32_t end) {
    while (first < end) {
      const int32_t count = std::min(end - first, kBits - first % kBits);
      clear(first / kBits, (~uint32_t{0} >> (kBits - count)) << (first % kBits));
      first += count;
    }
  });
}

std::span<const TokenCounts::Entry> LogitsProcessors::Counts(const TokenHistory& history) {
  OUTRIDER_CHECK(counts_ && history.drafts.empty());
  Count(history);
  return counts_->entries();
}

void LogitsProcessors::Count(const TokenHistory& history) {
  const std::span<const int32_t> output = history.tokens.subspan(history.prompt_length);
  OUTRIDER_CHECK(num_counted_ <= output.size());
  while (num_counted_ < output.size()) counts_->Add(output[num_counted_++]);
}

void LogitsProcessors::Penalise(const TokenHistory& history, std::span<float> logits) {
  Count(history);
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
