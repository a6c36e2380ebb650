// Random sampling fields and tokens over a small vocabulary, so that tokens repeat often.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "outrider/sampling/sampling_params.h"

namespace outrider {

inline constexpr int32_t kVocab = 24;
inline constexpr int32_t kEos = 1;

inline std::vector<int32_t> RandomTokens(std::mt19937& random, size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % kVocab);
  return tokens;
}

/// Each field is set in about a third of the cases.
inline SamplingParams RandomParams(std::mt19937& random) {
  const auto maybe = [&] { return random() % 3 == 0; };
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  SamplingParams params;
  params.temperature = maybe() ? 0.0F : uniform(0.1F, 2);
  if (maybe()) params.top_k = 1 + static_cast<int32_t>(random() % kVocab);
  if (maybe()) params.top_p = uniform(0.05F, 1);
  if (maybe()) params.min_p = uniform(0, 0.5F);
  if (maybe()) params.repetition_penalty = uniform(0.5F, 3);
  if (maybe()) params.presence_penalty = uniform(-2, 2);
  if (maybe()) params.frequency_penalty = uniform(-2, 2);
  if (maybe()) {
    const int32_t first = RandomTokens(random, 1)[0];
    params.logit_bias = {{first, uniform(-100, 100)}, {(first + 5) % kVocab, uniform(-5, 5)}};
  }
  if (maybe()) params.allowed_token_ids = RandomTokens(random, 1 + random() % 8);
  while (maybe()) {
    std::vector<int32_t>& word = params.bad_words.emplace_back();
    for (int32_t& t : word = RandomTokens(random, 1 + random() % 3)) {
      if (params.allowed_token_ids) {
        t = (*params.allowed_token_ids)[random() % params.allowed_token_ids->size()];
      }
    }
  }
  if (maybe()) params.min_tokens = static_cast<int32_t>(random() % 10);
  if (maybe()) params.stop_token_ids = RandomTokens(random, 2);
  return params;
}

}  // namespace outrider
