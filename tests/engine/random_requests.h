// Random requests, and what two runs of one differ in.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/test_engine.h"

namespace outrider {

/// Some of the fields that look at the tokens so far. The prompt's tokens are likely ones, so that
/// masks and biases of them matter.
inline void AddProcessors(std::mt19937& random, GenerationRequest& request) {
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto maybe = [&] { return uniform(0, 2) == 0; };
  const auto any_token = [&] {
    const auto& prompt = request.prompt_token_ids;
    return uniform(0, 4) == 0
               ? uniform(6, 1548)
               : prompt[static_cast<size_t>(uniform(0, static_cast<int>(prompt.size()) - 1))];
  };
  SamplingParams& sampling = request.sampling;
  if (maybe()) sampling.repetition_penalty = static_cast<float>(uniform(8, 20)) / 10;
  if (maybe()) sampling.presence_penalty = static_cast<float>(uniform(-20, 20)) / 10;
  if (maybe()) sampling.frequency_penalty = static_cast<float>(uniform(-5, 20)) / 10;
  if (maybe()) sampling.logit_bias = {{any_token(), static_cast<float>(uniform(-50, 50)) / 10}};
  if (maybe()) sampling.stop_token_ids = {any_token(), any_token()};
  if (maybe()) sampling.min_tokens = uniform(0, sampling.max_tokens);
  while (maybe()) {
    sampling.bad_words.emplace_back();
    for (int n = uniform(1, 3); n > 0; --n) sampling.bad_words.back().push_back(any_token());
  }
  if (uniform(0, 5) == 0) {
    sampling.allowed_token_ids.emplace();
    for (int n = uniform(4, 40); n > 0; --n) sampling.allowed_token_ids->push_back(any_token());
    sampling.min_tokens = 0;
  }
  if (maybe()) sampling.prompt_logprobs = uniform(0, 2);
}

/// Requests of many lengths with any sampling fields, all for the bundled model's vocabulary.
inline std::vector<GenerationRequest> RandomRequests(uint32_t seed, int count) {
  std::mt19937 random(seed);
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest request;
    const int kind = uniform(0, 9);
    const int length = kind == 0 ? uniform(1, 4) : (kind < 8 ? uniform(5, 60) : uniform(100, 300));
    request.prompt_token_ids.push_back(0);
    // A short pattern repeated: drafts are then sometimes right, sometimes wrong.
    const int period = uniform(2, 12);
    for (int t = 1; t < length; ++t) {
      request.prompt_token_ids.push_back(
          t > period && uniform(0, 9) > 0
              ? request.prompt_token_ids[static_cast<size_t>(t - period)]
              : uniform(6, 1548));
    }
    SamplingParams& sampling = request.sampling;
    sampling.temperature = uniform(0, 1) == 0 ? 0.0F : static_cast<float>(uniform(1, 15)) / 10;
    if (uniform(0, 3) == 0) sampling.top_k = uniform(1, 50);
    if (uniform(0, 3) == 0) sampling.top_p = static_cast<float>(uniform(1, 9)) / 10;
    if (uniform(0, 3) == 0) sampling.min_p = static_cast<float>(uniform(1, 5)) / 20;
    sampling.seed = static_cast<uint64_t>(uniform(0, 1000000));
    sampling.max_tokens = uniform(1, 40);
    sampling.ignore_eos = uniform(0, 1) == 0;
    // Without, a step in which nobody needs them finds likeliest tokens without logits.
    if (uniform(0, 2) > 0) sampling.logprobs = uniform(0, 3);
    if (uniform(0, 1) == 0) AddProcessors(random, request);
    requests.push_back(std::move(request));
  }
  return requests;
}

inline bool SameBits(const TokenLogprob& x, const TokenLogprob& y) {
  return x.token_id == y.token_id &&
         std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
}

/// The first difference between two lists, down to the last bit; empty when there is none.
inline std::string Difference(const std::vector<PositionLogprobs>& a,
                              const std::vector<PositionLogprobs>& b) {
  if (a.size() != b.size()) return fmt::format("{} and {} logprobs", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i].chosen, b[i].chosen) || a[i].rank != b[i].rank ||
        !std::equal(a[i].top.begin(), a[i].top.end(), b[i].top.begin(), b[i].top.end(), SameBits)) {
      return fmt::format("logprobs of token {} ({} and {})", i, a[i].chosen.logprob,
                         b[i].chosen.logprob);
    }
  }
  return "";
}

/// The first difference between what two runs of a request gave; empty when there is none.
inline std::string Difference(const Generated& a, const Generated& b) {
  if (a.tokens != b.tokens) {
    return fmt::format("tokens [{}] and [{}]", fmt::join(a.tokens, " "), fmt::join(b.tokens, " "));
  }
  if (a.finish_reason != b.finish_reason) return "finish reasons";
  if (a.text != b.text) return fmt::format("texts '{}' and '{}'", a.text, b.text);
  if (std::string difference = Difference(a.logprobs, b.logprobs); !difference.empty()) {
    return difference;
  }
  const std::string difference = Difference(a.prompt_logprobs, b.prompt_logprobs);
  return difference.empty() ? "" : "prompt " + difference;
}

}  // namespace outrider
