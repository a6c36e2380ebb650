// Answers of engines that are loaded as a server loads them, on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outrider/engine/engine_loader.h"
#include "tests/engine/random_requests.h"

namespace outrider::cuda {

inline constexpr int32_t kAnswerTokens = 40;

struct Answers {
  std::vector<Generated> results;
  EngineCounters counters;
};

/// Runs the requests together, which join in the course of some steps, or one after the other.
inline Answers RunAll(const EngineOptions& options, const std::vector<GenerationRequest>& requests,
                      bool alone = false) {
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  EXPECT_EQ(loaded.kernels, "cuda");
  Answers answers;
  answers.results.resize(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(*loaded.engine, requests[i], &answers.results[i]);
    if (alone) RunUntilIdle(*loaded.engine);
    if (i % 3 == 0) loaded.engine->Step();
  }
  RunUntilIdle(*loaded.engine);
  answers.counters = loaded.engine->Counters();
  return answers;
}

/// Expects equal answers of kAnswerTokens tokens each.
inline void ExpectEqual(const Answers& got, const Answers& want, const std::string& what) {
  ASSERT_EQ(got.results.size(), want.results.size());
  ASSERT_FALSE(want.results.empty());
  for (size_t i = 0; i < want.results.size(); ++i) {
    EXPECT_EQ(want.results[i].tokens.size(), kAnswerTokens);
    EXPECT_EQ(Difference(got.results[i], want.results[i]), "") << what << ", request " << i;
  }
}

/// 30 tokens each for 12 random prompts, half of them drawn, with this number of drafts.
inline std::vector<Generated> AnswersToRandomPrompts(EngineOptions options, int32_t drafts) {
  options.speculation.num_speculative_tokens = drafts;
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  EXPECT_EQ(loaded.kernels, "cuda");
  std::mt19937 random(5);
  std::vector<Generated> results(12);
  for (size_t i = 0; i < results.size(); ++i) {
    GenerationRequest request;
    request.prompt_token_ids.resize(1 + random() % 300);
    for (int32_t& token : request.prompt_token_ids) token = static_cast<int32_t>(random() % 1000);
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.7F;
    request.sampling.seed = 10 + i;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 2;
    Submit(*loaded.engine, std::move(request), &results[i]);
  }
  RunUntilIdle(*loaded.engine);
  return results;
}

}  // namespace outrider::cuda
