// How one request wants its tokens drawn: the sampling fields of the API, validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

/// Added to one token's logit.
struct TokenBias {
  int32_t token = 0;
  float value = 0;  // [-100, 100]
};

struct SamplingParams {
  float temperature = 1.0F;  // at least 0, finite; 0 is greedy
  int32_t top_k = 0;         // >= 1, or 0 for all tokens
  float top_p = 1.0F;        // (0, 1]
  float min_p = 0.0F;        // [0, 1]: keep tokens with p >= min_p * max p
  std::optional<uint64_t> seed;

  // Formulas and order: LogitsProcessors.
  float repetition_penalty = 1.0F;  // [0.01, 100]; above 1 discourages tokens of prompt and output
  float presence_penalty = 0.0F;    // [-2, 2]
  float frequency_penalty = 0.0F;   // [-2, 2]
  std::vector<TokenBias> logit_bias;            // each token at most once
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that the output must not hold
  std::optional<std::vector<int32_t>> allowed_token_ids;  // not empty

  int32_t max_tokens = 16;              // >= 1
  int32_t min_tokens = 0;               // [0, max_tokens]: nothing ends the output before
  std::vector<std::string> stop;        // stop strings, none empty, at most 16
  std::vector<int32_t> stop_token_ids;  // in addition to the model's EOS ids
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::vector<int32_t> kept_special_tokens = {};  // are text nevertheless: marks around tool calls

  /// Return the log-probability of each emitted token, and of this many most likely ones beside it.
  std::optional<int32_t> logprobs;
  /// Logprobs of the prompt's tokens from the second on, before any sampling field.
  std::optional<int32_t> prompt_logprobs;

  /// Throws Error naming field, value and range when a field is out of range for a model with
  /// `vocab_size` tokens and an engine that allows `max_logprobs`, or contradicts another.
  void Validate(int32_t vocab_size, int32_t max_logprobs) const;
};

/// The seed of choice `index` of a request for several: the request's own plus the index, so that
/// each choice can be had again alone.
constexpr uint64_t ChoiceSeed(uint64_t seed, int32_t index) {
  return seed + static_cast<uint64_t>(index);
}

}  // namespace outrider
