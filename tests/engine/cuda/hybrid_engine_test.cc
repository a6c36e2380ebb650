// Small networks of linear and latent attention on the GPU, loaded as a server loads them: answers
// with drafts are those without, bit for bit, however prompts are cut, pages taken away and
// prefixes found. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/cuda/engine_answers.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kVocab = 1000;

/// Prompts that repeat themselves, so that lookups find drafts; greedy and drawn answers.
std::vector<GenerationRequest> Requests(size_t count) {
  std::mt19937 random(5);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests[i];
    const auto length = static_cast<size_t>(1 + random() % 420);
    for (size_t t = 0; t < length; ++t) {
      request.prompt_token_ids.push_back(t >= 9 && random() % 8 != 0
                                             ? request.prompt_token_ids[t - 9]
                                             : static_cast<int32_t>(6 + random() % 900));
    }
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.7F;
    request.sampling.seed = 10 + i;
    request.sampling.max_tokens = kAnswerTokens;
    request.sampling.ignore_eos = true;
    // Answers of few tokens repeat themselves too: drafts are then sometimes right.
    if (i % 2 == 1) request.sampling.allowed_token_ids = {{50, 51}};
    if (i % 3 != 0) request.sampling.logprobs = 2;
  }
  return requests;
}

class HybridEngineTest : public HopperTest<> {
 protected:
  EngineOptions Options(const ModelDirectory& model, DraftMethod method, int32_t drafts) {
    EngineOptions options = SmallEngineOptions(16);
    options.model = model.directory().string();
    options.load_format = LoadFormat::kDummy;
    options.block_size = 256;
    options.max_model_len = 700;
    options.kv_cache_memory_bytes = int64_t{512} << 20;
    options.speculation.method = method;
    options.speculation.num_speculative_tokens = drafts;
    return options;
  }

  /// Each request alone, without drafts, in one piece.
  Answers Alone(const ModelDirectory& model, const std::vector<GenerationRequest>& requests) {
    EngineOptions options = Options(model, DraftMethod::kNgram, 0);
    options.enable_prefix_caching = false;
    return RunAll(options, requests, /*alone=*/true);
  }

  const ModelDirectory ling_{WithGpuHeads(SmallLingConfig(kVocab))};
  const ModelDirectory kimi_{WithGpuHeads(SmallKimiConfig(kVocab))};
};

TEST_F(HybridEngineTest, AnswersWithDraftsAreThoseWithout) {
  const std::vector<GenerationRequest> requests = Requests(20);
  for (const ModelDirectory* model : {&ling_, &kimi_}) {
    const Answers plain = Alone(*model, requests);
    for (const int32_t drafts : {0, 1, 2, 3, 16}) {
      const Answers got = RunAll(Options(*model, DraftMethod::kNgram, drafts), requests);
      ExpectEqual(got, plain, fmt::format("{} drafts", drafts));
      if (drafts > 0) {
        EXPECT_GT(got.counters.speculation.num_accepted_tokens, 0);
        EXPECT_LT(got.counters.speculation.num_accepted_tokens,
                  got.counters.speculation.num_draft_tokens);
      }
    }
  }
}

TEST_F(HybridEngineTest, AnswersWithTheModuleAreThoseWithout) {
  const std::vector<GenerationRequest> requests = Requests(20);
  const Answers plain = Alone(ling_, requests);
  for (const int32_t drafts : {1, 3}) {
    ExpectEqual(RunAll(Options(ling_, DraftMethod::kMtp, drafts), requests), plain,
                fmt::format("{} drafts", drafts));
  }
}

TEST_F(HybridEngineTest, ChunksPreemptionsAndPrefixesChangeNoBit) {
  std::vector<GenerationRequest> requests = Requests(20);
  for (size_t i = 10; i < requests.size(); ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_token_ids;
    std::vector<int32_t> all(300);  // they begin alike
    for (size_t t = 0; t < all.size(); ++t) all[t] = static_cast<int32_t>(6 + t * 37 % 900);
    all.insert(all.end(), prompt.begin(), prompt.end());
    prompt = std::move(all);
    prompt.resize(std::min<size_t>(prompt.size(), 650));
  }
  for (const ModelDirectory* model : {&ling_, &kimi_}) {
    const Answers plain = Alone(*model, requests);
    for (const int32_t drafts : {0, 3}) {
      // Room for a few requests of this length, and for all.
      for (const auto& [step, megabytes] : {std::pair{37, 24}, {200, 24}, {200, 512}}) {
        EngineOptions options = Options(*model, DraftMethod::kNgram, drafts);
        options.max_num_batched_tokens = step;
        options.kv_cache_memory_bytes = int64_t{megabytes} << 20;
        const Answers got = RunAll(options, requests);
        ExpectEqual(got, plain,
                    fmt::format("{} drafts, steps of {}, {} MB", drafts, step, megabytes));
        std::printf("%d drafts, steps of %d, %d MB: %lld preemptions, %lld prefix hits\n", drafts,
                    step, megabytes, static_cast<long long>(got.counters.num_preemptions),
                    static_cast<long long>(got.counters.prefix_cache_hits));
        if (megabytes > 100) {
          EXPECT_GT(got.counters.prefix_cache_hits, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
