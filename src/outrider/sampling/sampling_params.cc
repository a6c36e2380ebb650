#include "outrider/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxBadWords = 1024;

template <typename T>
void CheckRange(const char* field, T value, bool ok, const char* range) {
  if (!ok) throw InvalidArgument("{} is {}: it must be {}", field, value, range);
}

void CheckTokens(const char* field, std::span<const int32_t> tokens, int32_t vocab_size) {
  for (const int32_t id : tokens) {
    if (id < 0 || id >= vocab_size) {
      throw InvalidArgument("{} holds {}: ids of this model are 0 to {}", field, id,
                            vocab_size - 1);
    }
  }
}

void CheckLogprobs(const char* field, std::optional<int32_t> count, int32_t max_logprobs) {
  if (count && (*count < 0 || *count > max_logprobs)) {
    throw InvalidArgument("{} is {}: it must be 0 to {} (--max-logprobs)", field, *count,
                          max_logprobs);
  }
}

void CheckBias(const std::vector<TokenBias>& bias, int32_t vocab_size) {
  std::vector<int32_t> tokens;
  for (const TokenBias& b : bias) {
    const bool in_range = b.value >= -100 && b.value <= 100;  // NaN is not
    if (!in_range) {
      throw InvalidArgument("logit_bias of token {} is {}: it must be in [-100, 100]", b.token,
                            b.value);
    }
    tokens.push_back(b.token);
  }
  CheckTokens("logit_bias", tokens, vocab_size);
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) {
    throw InvalidArgument("logit_bias holds token {} twice: give each token once", *twice);
  }
}

void CheckBadWords(const std::vector<std::vector<int32_t>>& words, int32_t vocab_size) {
  CheckRange("number of token sequences of bad_words", words.size(), words.size() <= kMaxBadWords,
             "at most 1024");
  for (const std::vector<int32_t>& word : words) {
    if (word.empty()) {
      throw InvalidArgument("bad_words holds an empty word: give at least one token");
    }
    CheckTokens("bad_words", word, vocab_size);
  }
}

}  // namespace

void SamplingParams::Validate(int32_t vocab_size, int32_t max_logprobs) const {
  // Written so that NaN fails.
  CheckRange("temperature", temperature, temperature >= 0 && std::isfinite(temperature),
             "at least 0 and finite");
  CheckRange("top_k", top_k, top_k >= 0, "at least 1, or 0 for no limit");
  CheckRange("top_p", top_p, top_p > 0 && top_p <= 1, "in (0, 1]");
  CheckRange("min_p", min_p, min_p >= 0 && min_p <= 1, "in [0, 1]");
  CheckRange("repetition_penalty", repetition_penalty,
             repetition_penalty >= 0.01F && repetition_penalty <= 100, "in [0.01, 100]");
  CheckRange("presence_penalty", presence_penalty, presence_penalty >= -2 && presence_penalty <= 2,
             "in [-2, 2]");
  CheckRange("frequency_penalty", frequency_penalty,
             frequency_penalty >= -2 && frequency_penalty <= 2, "in [-2, 2]");
  CheckBias(logit_bias, vocab_size);
  CheckBadWords(bad_words, vocab_size);
  if (allowed_token_ids) {
    if (allowed_token_ids->empty()) {
      throw InvalidArgument("allowed_token_ids is empty: give at least one token id");
    }
    CheckTokens("allowed_token_ids", *allowed_token_ids, vocab_size);
  }
  CheckRange("max_tokens", max_tokens, max_tokens >= 1, "at least 1");
  if (min_tokens < 0 || min_tokens > max_tokens) {
    throw InvalidArgument("min_tokens is {}: it must be 0 to max_tokens, which is {}", min_tokens,
                          max_tokens);
  }
  CheckRange("number of stop strings", stop.size(), stop.size() <= kMaxStops, "at most 16");
  for (const std::string& s : stop) {
    if (s.empty()) throw InvalidArgument("stop holds an empty string: give at least one character");
  }
  CheckTokens("stop_token_ids", stop_token_ids, vocab_size);
  CheckLogprobs("logprobs", logprobs, max_logprobs);
  CheckLogprobs("prompt_logprobs", prompt_logprobs, max_logprobs);
}

}  // namespace outrider
