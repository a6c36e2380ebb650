// Requests over prompts that the bundled model was trained on, and their results compared.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "tests/engine/test_engine.h"
#include "tests/networks/model_directory.h"

namespace outrider {

/// Prompts that the bundled model was trained on: drafts are mostly right.
inline std::vector<std::vector<int32_t>> TrainedPrompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& entry : ReadJson(GoldenDirectory() / "tiny-v3-mtp3/golden_greedy.json")) {
    prompts.push_back(entry["prompt_ids"].get<std::vector<int32_t>>());
  }
  return prompts;
}

/// What the greedy list of a golden text was made for: its prompt, and as many tokens.
inline GenerationRequest GreedyRequest(const nlohmann::json& golden) {
  GenerationRequest request;
  request.prompt_token_ids = golden["prompt_ids"].get<std::vector<int32_t>>();
  request.sampling.temperature = 0;
  request.sampling.max_tokens = static_cast<int32_t>(golden["greedy_ids"].size());
  request.sampling.ignore_eos = true;  // the golden list may go on after it
  return request;
}

inline std::vector<int32_t> RandomTokens(size_t seed, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(6 + random() % 1500);
  return tokens;
}

inline GenerationRequest Request(std::vector<int32_t> prompt, int32_t max_tokens = 24,
                                 float temperature = 0) {
  GenerationRequest request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.seed = 11;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 1;
  request.trace_steps = true;
  return request;
}

inline std::vector<Generated> RunAlone(const std::vector<GenerationRequest>& requests,
                                       DrafterKind drafter = DrafterKind::kNone) {
  const auto engine = MakeTestEngine({.drafter = drafter, .prefix_caching = false});
  return RunEach(*engine, requests);
}

inline void ExpectEqual(const std::vector<Generated>& a, const std::vector<Generated>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].tokens, b[i].tokens) << "request " << i;
    ASSERT_EQ(a[i].finish_reason, b[i].finish_reason) << "request " << i;
    ASSERT_EQ(a[i].logprobs.size(), b[i].logprobs.size()) << "request " << i;
    for (size_t t = 0; t < a[i].logprobs.size(); ++t) {
      ASSERT_EQ(std::bit_cast<uint32_t>(a[i].logprobs[t].chosen.logprob),
                std::bit_cast<uint32_t>(b[i].logprobs[t].chosen.logprob))
          << "request " << i << " token " << t;
    }
  }
}

/// The drafter's state was right at every step: it proposed what it proposes for each alone.
inline void ExpectEqualDrafts(const std::vector<Generated>& a, const std::vector<Generated>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i].drafts, b[i].drafts) << "request " << i;
}

}  // namespace outrider
