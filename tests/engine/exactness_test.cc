// The promise: a request's tokens and logprob bits do not depend on drafting, batching, chunking,
// block size or preemption. Random mixes, each request alone without speculation against everything
// together with everything on.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <tuple>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

/// Some of the fields that look at the tokens so far. The prompt's tokens are likely ones, so that
/// masks and biases of them matter.
void AddProcessors(std::mt19937& random, GenerationRequest& request) {
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
    if (uniform(0, 1) == 0) AddProcessors(random, request);
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSameBits(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b,
                    const std::string& what) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id &&
           std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
  };
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same(a[i].chosen, b[i].chosen)) << what << " token " << i;
    ASSERT_EQ(a[i].rank, b[i].rank) << what << " token " << i;
    ASSERT_TRUE(
        std::equal(a[i].top.begin(), a[i].top.end(), b[i].top.begin(), b[i].top.end(), same))
        << what << " token " << i;
  }
}

void ExpectSameBits(const Generated& a, const Generated& b, const std::string& what) {
  ASSERT_EQ(a.tokens, b.tokens) << what;
  ASSERT_EQ(a.finish_reason, b.finish_reason) << what;
  ExpectSameBits(a.logprobs, b.logprobs, what);
  ExpectSameBits(a.prompt_logprobs, b.prompt_logprobs, what + ", prompt,");
}

/// Equal tokens and close logprobs, up to the first token where the two best were nearly equal.
void ExpectClose(const Generated& a, const Generated& b, const std::string& what) {
  constexpr float kTolerance = 1e-3F;
  for (size_t i = 0; i < std::min(a.tokens.size(), b.tokens.size()); ++i) {
    ASSERT_NEAR(a.logprobs[i].chosen.logprob, b.logprobs[i].chosen.logprob, kTolerance)
        << what << " token " << i;
    if (a.tokens[i] != b.tokens[i]) return;
  }
  ASSERT_EQ(a.tokens, b.tokens) << what;
}

/// The requests of a seed one after the other, without speculation. Computed once per type, mode
/// and seed.
const std::vector<Generated>& RunAlone(DType dtype, LogprobsMode mode, uint32_t seed,
                                       const std::vector<GenerationRequest>& requests) {
  static std::map<std::tuple<DType, LogprobsMode, uint32_t>, std::vector<Generated>> known;
  std::vector<Generated>& results = known[{dtype, mode, seed}];
  if (!results.empty()) return results;
  results.resize(requests.size());
  const auto engine = MakeTestEngine({.dtype = dtype,
                                      .drafter = DrafterKind::kNone,
                                      .max_num_batched_tokens = 1024,
                                      .prefix_caching = false,
                                      .logprobs_mode = mode});
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(*engine, requests[i], &results[i]);
    RunUntilIdle(*engine);
  }
  return results;
}

struct Case {
  const char* name;
  uint32_t seed;
  TestEngineOptions options;
};

class ExactnessTest : public testing::TestWithParam<Case> {};

TEST_P(ExactnessTest, TogetherEqualsAlone) {
  const auto& [name, seed, options] = GetParam();
  const auto requests = RandomRequests(seed, 24);
  const auto& alone = RunAlone(options.dtype, options.logprobs_mode, seed, requests);
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
    ExpectSameBits(together[i], alone[i], fmt::format("{} seed {} request {}", name, seed, i));
    if (HasFatalFailure()) return;
  }
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.num_requests_running + counters.num_requests_waiting, 0);
  EXPECT_EQ(counters.kv_cache_usage, 0);
  EXPECT_EQ(counters.num_preemptions > 0, options.num_blocks < 100);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, ExactnessTest,
    testing::Values(
        Case{"plain", 1, {.drafter = DrafterKind::kNone}}, Case{"chain1", 2, {.k = 1}},
        Case{"chain2", 1, {.k = 2, .block_size = 8, .max_num_batched_tokens = 37}},
        Case{"chain3", 2, {.k = 3, .block_size = 64, .num_blocks = 128, .threads = 2}},
        Case{"chain3_float32", 3, {.dtype = DType::kF32, .max_num_batched_tokens = 64}},
        Case{"chain3_preempted", 2, {.k = 3, .num_blocks = 26, .max_model_len = 400}},
        Case{
            "repeated3_processed_logprobs",
            3,
            {.drafter = DrafterKind::kRepeated, .k = 3, .logprobs_mode = LogprobsMode::kProcessed}},
        Case{"chain3_uniform_pad",
             1,
             {.k = 3,
              .draft_form = DraftForm::kPadded,
              .threads = 2,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"chain2_uniform_pad_preempted",
             2,
             {.k = 2,
              .num_blocks = 26,
              .max_model_len = 400,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated3_uniform_pad",
             1,
             {.drafter = DrafterKind::kRepeated,
              .k = 3,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated5_small_chunks",
             1,
             {.drafter = DrafterKind::kRepeated,
              .k = 5,
              .block_size = 4,
              .num_blocks = 2048,
              .max_num_batched_tokens = 19}},
        Case{"repeated2_preempted",
             2,
             {.drafter = DrafterKind::kRepeated, .k = 2, .num_blocks = 26, .max_model_len = 400}}),
    [](const auto& test) { return std::string(test.param.name); });

/// The backends that leave requests over promise no bits, but the same function.
class InexactBackendTest : public testing::TestWithParam<AttentionBackend> {};

TEST_P(InexactBackendTest, TogetherIsCloseToAlone) {
  constexpr uint32_t kSeed = 1003;
  const TestEngineOptions options = {.dtype = DType::kF32,
                                     .num_blocks = 40,
                                     .max_model_len = 400,
                                     .attention_backend = GetParam()};
  auto requests = RandomRequests(kSeed, 12);
  for (GenerationRequest& request : requests) {
    // Without processors, tokens that are nearly equally good have nearly equal logprobs.
    request.sampling = SamplingParams();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 0;
  }
  const auto& alone = RunAlone(options.dtype, options.logprobs_mode, kSeed, requests);
  const auto engine = MakeTestEngine(options);
  std::vector<Generated> together(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(*engine, requests[i], &together[i]);
    engine->Step();
  }
  RunUntilIdle(*engine);
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectClose(together[i], alone[i], fmt::format("request {}", i));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, InexactBackendTest,
                         testing::Values(AttentionBackend::kUniformShortest,
                                         AttentionBackend::kUniformLargest,
                                         AttentionBackend::kSingle),
                         [](const auto& test) {
                           std::string name(AttentionBackendName(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
