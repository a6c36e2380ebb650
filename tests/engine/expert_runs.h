// The experts of tokens: those of requests together against those of each alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/engine/test_engine.h"

namespace outrider {

inline std::vector<int16_t> RowOf(const RoutedExperts& experts, int32_t token) {
  const auto size = static_cast<size_t>(experts.shape.RowSize());
  const auto begin = experts.ids.begin() +
                     static_cast<std::ptrdiff_t>(static_cast<size_t>(token - experts.from) * size);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

/// The first difference between the experts of a request and those of all its tokens; "": none.
inline std::string ExpertDifference(const Generated& some, const Generated& all) {
  if (some.tokens != all.tokens) return "tokens";
  if (some.experts == nullptr || all.experts == nullptr) return "no experts";
  const RoutedExperts& a = *some.experts;
  const RoutedExperts& b = *all.experts;
  if (b.from != 0 || !(a.shape == b.shape)) return "shapes";
  if (a.from + a.tokens != b.tokens) {
    return fmt::format("{} from {} and {} tokens", a.tokens, a.from, b.tokens);
  }
  if (a.ids.size() != static_cast<size_t>(a.tokens * a.shape.RowSize())) return "number of ids";
  for (int32_t token = a.from; token < b.tokens; ++token) {
    if (RowOf(a, token) != RowOf(b, token)) {
      return fmt::format("token {}: [{}] and [{}]", token, fmt::join(RowOf(a, token), " "),
                         fmt::join(RowOf(b, token), " "));
    }
  }
  return "";
}

/// Every request alone, with one chunk for its prompt, no drafts and nothing cached.
inline std::vector<Generated> AllExpertsOf(const TestEngineOptions& options,
                                           std::vector<GenerationRequest> requests) {
  const auto engine = MakeTestEngine({.ops = options.ops,
                                      .checkpoint = options.checkpoint,
                                      .dummy_seed = options.dummy_seed,
                                      .dtype = options.dtype,
                                      .quantization = options.quantization,
                                      .drafter = DrafterKind::kNone,
                                      .max_num_batched_tokens = 1024,
                                      .prefix_caching = false,
                                      .cache_form = options.cache_form,
                                      .queued = options.queued,
                                      .tells_experts = true});
  for (GenerationRequest& request : requests) request.experts_from = 0;
  return RunEach(*engine, requests);
}

/// Random requests, some of which ask for the experts of all tokens, of some, or of none.
/// `preempts`: whether the cache is so small that requests are thrown out.
inline void ExpectExpertsTogetherAsAlone(const std::string& name, TestEngineOptions options,
                                         uint32_t seed, bool preempts) {
  options.drafter_checkpoint = TinyEagle3Directory();
  options.tells_experts = true;
  auto requests = RandomRequests(seed, preempts ? 32 : 16);
  // Half of them twice, so that prompts are found in the cache.
  for (size_t i = 0; i < 8; ++i) requests.push_back(requests[i]);
  const std::vector<Generated> alone = AllExpertsOf(options, requests);
  std::mt19937 random(seed);
  for (GenerationRequest& request : requests) {
    const auto length = static_cast<uint32_t>(request.prompt_token_ids.size());
    if (random() % 4 > 0) request.experts_from = 0;
    if (random() % 2 > 0) request.experts_from = static_cast<int32_t>(random() % (length + 1));
  }
  requests.back().sampling.prompt_logprobs.reset();
  requests.back().experts_from = static_cast<int32_t>(requests.back().prompt_token_ids.size());
  const auto engine = MakeTestEngine(options);
  const std::vector<Generated> together =
      RunJoining(*engine, requests, [&] { return random() % 3; });
  int64_t accepted = 0;
  int64_t drafted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    accepted += together[i].stats.speculation.num_accepted_tokens;
    drafted += together[i].stats.speculation.num_draft_tokens;
    if (!requests[i].experts_from) {
      EXPECT_EQ(together[i].experts, nullptr);
      continue;
    }
    EXPECT_EQ(together[i].experts->from, *requests[i].experts_from);
    ASSERT_EQ(ExpertDifference(together[i], alone[i]), "") << name << " request " << i;
  }
  EXPECT_EQ(accepted < drafted, options.drafter != DrafterKind::kNone);
  EXPECT_EQ(engine->Counters().num_preemptions > 0, preempts);
}

}  // namespace outrider
