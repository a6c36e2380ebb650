// How one request wants its tokens drawn: the sampling fields of the API, validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

struct SamplingParams {
  float temperature = 1.0F;  // [0, 2]; 0 is greedy
  int32_t top_k = 0;         // >= 1, or 0 for all tokens
  float top_p = 1.0F;        // (0, 1]
  float min_p = 0.0F;        // [0, 1]: keep tokens with p >= min_p * max p
  std::optional<uint64_t> seed;

  int32_t max_tokens = 16;              // >= 1
  std::vector<std::string> stop;        // stop strings, none empty, at most 16
  std::vector<int32_t> stop_token_ids;  // in addition to the model's EOS ids
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;

  /// Return the log-probability of each emitted token, and of this many most likely ones beside it.
  std::optional<int32_t> logprobs;

  /// Throws Error naming field, value and range when a field is out of range for a model with
  /// `vocab_size` tokens and an engine that allows `max_logprobs`.
  void Validate(int32_t vocab_size, int32_t max_logprobs) const;
};

}  // namespace outrider
