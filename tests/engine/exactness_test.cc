// The promise: a request's tokens and logprob bits do not depend on drafting, batching, chunking,
// block size or preemption. Random mixes, each request alone without speculation against everything
// together with everything on.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

std::vector<GenerationRequest> RandomRequests(uint32_t seed, int count) {
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
    sampling.logprobs = uniform(0, 3);
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSameBits(const Generated& a, const Generated& b, const std::string& what) {
  ASSERT_EQ(a.tokens, b.tokens) << what;
  ASSERT_EQ(a.finish_reason, b.finish_reason) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id &&
           std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
  };
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    ASSERT_TRUE(same(a.logprobs[i].chosen, b.logprobs[i].chosen)) << what << " token " << i;
    ASSERT_EQ(a.logprobs[i].top.size(), b.logprobs[i].top.size());
    for (size_t j = 0; j < a.logprobs[i].top.size(); ++j) {
      ASSERT_TRUE(same(a.logprobs[i].top[j], b.logprobs[i].top[j])) << what << " token " << i;
    }
  }
}

std::vector<Generated> RunAlone(DType dtype, const std::vector<GenerationRequest>& requests) {
  TestEngineOptions options;
  options.dtype = dtype;
  options.drafter = DrafterKind::kNone;
  options.max_num_batched_tokens = 1024;
  options.threads = 1;
  const auto engine = MakeTestEngine(options);
  std::vector<Generated> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(*engine, requests[i], &results[i]);
    RunUntilIdle(*engine);
  }
  return results;
}

struct Case {
  const char* name;
  TestEngineOptions options;
};

class ExactnessTest : public testing::TestWithParam<Case> {};

TEST_P(ExactnessTest, TogetherEqualsAlone) {
  const TestEngineOptions& options = GetParam().options;
  int64_t preemptions = 0;
  for (const uint32_t seed : {1U, 2U}) {
    const auto requests = RandomRequests(seed, 24);
    const auto alone = RunAlone(options.dtype, requests);
    const auto engine = MakeTestEngine(options);
    std::vector<Generated> together(requests.size());
    std::mt19937 random(seed);
    // Requests join while others run.
    for (size_t i = 0; i < requests.size(); ++i) {
      Submit(*engine, requests[i], &together[i]);
      for (uint32_t steps = random() % 3; steps > 0; --steps) engine->Step();
    }
    RunUntilIdle(*engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSameBits(together[i], alone[i],
                     fmt::format("{} seed {} request {}", GetParam().name, seed, i));
      if (HasFatalFailure()) return;
    }
    const EngineCounters counters = engine->Counters();
    EXPECT_EQ(counters.num_requests_running + counters.num_requests_waiting, 0);
    EXPECT_EQ(counters.kv_cache_usage, 0);
    preemptions += counters.num_preemptions;
  }
  EXPECT_EQ(preemptions > 0, options.num_blocks < 100);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, ExactnessTest,
    testing::Values(
        Case{"plain", {.drafter = DrafterKind::kNone}}, Case{"chain1", {.k = 1}},
        Case{"chain2", {.k = 2, .block_size = 8, .max_num_batched_tokens = 37}},
        Case{"chain3", {.k = 3, .block_size = 64, .num_blocks = 128, .threads = 2}},
        Case{"chain3_float32", {.dtype = DType::kF32, .max_num_batched_tokens = 64}},
        Case{"chain3_preempted", {.k = 3, .num_blocks = 26, .max_model_len = 400}},
        Case{"chain3_padded",
             {.k = 3, .threads = 2, .attention_backend = AttentionBackend::kUniformPad}},
        Case{"chain2_padded_preempted",
             {.k = 2,
              .num_blocks = 26,
              .max_model_len = 400,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated3_padded",
             {.drafter = DrafterKind::kRepeated,
              .k = 3,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated3", {.drafter = DrafterKind::kRepeated, .k = 3}},
        Case{"repeated5_small_chunks",
             {.drafter = DrafterKind::kRepeated,
              .k = 5,
              .block_size = 4,
              .num_blocks = 2048,
              .max_num_batched_tokens = 19}},
        Case{"repeated2_preempted",
             {.drafter = DrafterKind::kRepeated, .k = 2, .num_blocks = 26, .max_model_len = 400}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider
