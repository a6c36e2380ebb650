// Ranks on GPUs, and what they give beside one GPU. Recorded steps of ranks wait for each other
// while they run, so on one GPU all of them must find room at the same time: kernels whose blocks
// wait for each other take a part of it each (ShareMlaBlocks).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/peer_communicator.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/engine/test_engine.h"
#include "tests/kernels/cuda/several_gpus_test.h"

namespace outrider::cuda {

inline int32_t VocabOf(const std::filesystem::path& checkpoint) {
  return static_cast<int32_t>(ReadModelConfig(checkpoint).vocab_size);
}

/// A request with a prompt of `tokens` random tokens.
inline GenerationRequest LongRequest(uint32_t seed, size_t tokens, int32_t vocab) {
  std::mt19937 random(seed);
  GenerationRequest request;
  request.prompt_token_ids.resize(tokens);
  for (int32_t& token : request.prompt_token_ids) {
    token = static_cast<int32_t>(6 + random() % static_cast<uint32_t>(vocab - 6));
  }
  request.sampling.temperature = 0.8F;
  request.sampling.seed = seed;
  request.sampling.max_tokens = 24;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 3;
  request.sampling.prompt_logprobs = 2;
  return request;
}

/// What ranks gather in steps that are not recorded goes in chunks of 16 rows and more, as that of
/// the largest steps does.
inline std::vector<std::unique_ptr<Communicator>> InSmallChunks(
    const std::vector<const Ops*>& ranks, double seconds) {
  std::vector<const CudaOps*> gpus;
  for (const Ops* ops : ranks) gpus.push_back(static_cast<const CudaOps*>(ops));
  return MakePeerCommunicators(gpus, seconds, {.least_bytes = 1, .most_unit = 16});
}

/// Base: HopperTest<>, or SeveralGpusTest.
template <typename Base>
class RanksOnGpus : public Base {
 protected:
  /// Operations of `ranks` ranks, which take turns on the first `gpus()` GPUs.
  std::vector<const Ops*> RankOps(int32_t ranks, bool whole_attention) const {
    static auto& all =
        *new std::map<std::tuple<int32_t, bool, int>, std::vector<std::unique_ptr<Ops>>>;
    std::vector<std::unique_ptr<Ops>>& own = all[{ranks, whole_attention, gpus()}];
    if (own.empty()) {
      std::vector<int> devices;
      for (int32_t rank = 0; rank < ranks; ++rank) devices.push_back(rank % gpus());
      own = MakeRankOps(DeviceKind::kCuda, devices, whole_attention);
    }
    std::vector<const Ops*> ops;
    for (const auto& each : own) ops.push_back(each.get());
    return ops;
  }

  static TestEngineOptions OnGpu(TestEngineOptions options) {
    static const CudaOps* const alone = new CudaOps;
    options.ops = alone;
    options.queued = true;
    return options;
  }

  TestEngineOptions OnRanks(TestEngineOptions options, int32_t ranks) const {
    options.ranks = ranks;
    options.rank_ops = RankOps(ranks, options.divides_requests);
    return options;
  }

  /// Expects the answers of ranks to be those given. What the engine counted.
  EngineCounters ExpectAnswers(const TestEngineOptions& options, int32_t ranks,
                               const std::vector<GenerationRequest>& requests,
                               const std::vector<Generated>& expected) const {
    EngineCounters counters;
    const std::vector<Generated> got =
        AnswersOf(OnRanks(options, ranks), requests, &BundledTokenizer(), &counters);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Difference(got[i], expected[i]), "") << ranks << " ranks, request " << i;
      EXPECT_GT(expected[i].tokens.size(), 0U);
    }
    return counters;
  }

  /// Random requests, and two with long prompts, on several ranks against one.
  void ExpectEqualOnRanks(const TestEngineOptions& asked, int32_t vocab,
                          const std::vector<int32_t>& numbers = {2, 4},
                          bool divides_requests = false) const {
    const TestEngineOptions options = OnGpu(asked);
    TestEngineOptions on_ranks = options;
    on_ranks.divides_requests = divides_requests;
    std::vector<GenerationRequest> requests = RandomRequests(11, 10);
    AddGrammars(11, vocab, requests);
    const size_t room = static_cast<size_t>(options.max_model_len) - 40;
    for (const uint32_t seed : {1U, 2U}) requests.push_back(LongRequest(seed, room / seed, vocab));
    const std::vector<Generated> expected = AnswersOf(options, requests, &BundledTokenizer());
    for (const int32_t ranks : numbers) {
      const EngineCounters counters = ExpectAnswers(on_ranks, ranks, requests, expected);
      EXPECT_GT(counters.gpu->passes_repeated, 0) << "no step was recorded";
    }
  }

  virtual int gpus() const = 0;
};

}  // namespace outrider::cuda
