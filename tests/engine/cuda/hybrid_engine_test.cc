// Small networks of linear and latent attention on the GPU, loaded as a server loads them, in
// bfloat16, FP8 and 4 bits: answers with drafts are those without, bit for bit, however prompts are
// cut, pages taken away and prefixes found. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/cuda/engine_answers.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kVocab = 1000;
constexpr int32_t kPageTokens = 256;

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

/// Requests of which half begin alike. The others' answers begin in a page and end in the next.
std::vector<GenerationRequest> RequestsWithAPrefix(size_t count) {
  std::vector<GenerationRequest> requests = Requests(count);
  for (size_t i = 0; i < count / 2; ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_token_ids;
    const size_t drawn = prompt.size();
    const size_t length = size_t{kPageTokens} - kAnswerTokens + 2 + 3 * i;
    for (size_t t = drawn; t < length; ++t) prompt.push_back(prompt[t % drawn]);
    prompt.resize(length);
  }
  for (size_t i = count / 2; i < count; ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_token_ids;
    std::vector<int32_t> all(300);
    for (size_t t = 0; t < all.size(); ++t) all[t] = static_cast<int32_t>(6 + t * 37 % 900);
    all.insert(all.end(), prompt.begin(), prompt.end());
    prompt = std::move(all);
    prompt.resize(std::min<size_t>(prompt.size(), 650));
  }
  return requests;
}

/// With random weights, or with those in its folder.
struct Model {
  const char* name;
  std::filesystem::path directory;
  LoadFormat format = LoadFormat::kDummy;
};

class HybridEngineTest : public HopperTest<> {
 protected:
  static EngineOptions Options(const Model& model, DraftMethod method, int32_t drafts) {
    EngineOptions options = SmallEngineOptions(16);
    options.model = model.directory.string();
    options.load_format = model.format;
    options.block_size = kPageTokens;
    options.max_model_len = 700;
    options.kv_cache_memory_bytes = int64_t{512} << 20;
    options.speculation.method = method;
    options.speculation.num_speculative_tokens = drafts;
    return options;
  }

  /// Each request alone, without drafts, in one piece.
  static Answers Alone(const Model& model, const std::vector<GenerationRequest>& requests) {
    EngineOptions options = Options(model, DraftMethod::kNgram, 0);
    options.enable_prefix_caching = false;
    return RunAll(options, requests, /*alone=*/true);
  }

  static void ExpectLookedUpDraftsToChangeNothing(const Model& model) {
    SCOPED_TRACE(model.name);
    const std::vector<GenerationRequest> requests = Requests(20);
    const Answers plain = Alone(model, requests);
    for (const int32_t drafts : {0, 1, 2, 3, 16}) {
      const Answers got = RunAll(Options(model, DraftMethod::kNgram, drafts), requests);
      ExpectEqual(got, plain, fmt::format("{} drafts", drafts));
      if (drafts > 0) {
        EXPECT_GT(got.counters.speculation.num_accepted_tokens, 0);
        EXPECT_LT(got.counters.speculation.num_accepted_tokens,
                  got.counters.speculation.num_draft_tokens);
      }
    }
  }

  static void ExpectTheModulesDraftsToChangeNothing(const Model& model) {
    SCOPED_TRACE(model.name);
    const std::vector<GenerationRequest> requests = Requests(20);
    const Answers plain = Alone(model, requests);
    for (const int32_t drafts : {1, 3}) {
      ExpectEqual(RunAll(Options(model, DraftMethod::kMtp, drafts), requests), plain,
                  fmt::format("{} drafts", drafts));
    }
  }

  static void ExpectChunksPreemptionsAndPrefixesToChangeNothing(const Model& model,
                                                                DraftMethod method) {
    SCOPED_TRACE(model.name);
    const std::vector<GenerationRequest> requests = RequestsWithAPrefix(20);
    const Answers plain = Alone(model, requests);
    int64_t preemptions = 0;
    for (const int32_t drafts : {0, 3}) {
      // Room for a few requests of this length, and for all.
      for (const auto& [step, megabytes] : {std::pair{37, 10}, {200, 10}, {200, 16}, {200, 512}}) {
        EngineOptions options = Options(model, method, drafts);
        options.max_num_batched_tokens = step;
        options.kv_cache_memory_bytes = int64_t{megabytes} << 20;
        const Answers got = RunAll(options, requests);
        ExpectEqual(got, plain,
                    fmt::format("{} drafts, steps of {}, {} MB", drafts, step, megabytes));
        std::printf("%s, %d drafts, steps of %d, %d MB: %lld preemptions, %lld prefix hits\n",
                    model.name, drafts, step, megabytes,
                    static_cast<long long>(got.counters.num_preemptions),
                    static_cast<long long>(got.counters.prefix_cache_hits));
        preemptions += got.counters.num_preemptions;
        if (megabytes > 100) {
          EXPECT_GT(got.counters.prefix_cache_hits, 0);
        }
      }
    }
    EXPECT_GT(preemptions, 0);
  }

  /// Weights as codes: the trained one in blocks of FP8, and with experts of 4 bits.
  std::vector<Model> ModelsOfCodes() const {
    return {{"FP8", TinyLingDirectory(), LoadFormat::kAuto},
            {"INT4 experts", int4_ling_.directory(), LoadFormat::kAuto},
            {"FP8 with FP4 experts", fp4_ling_.directory()}};
  }

  const ModelDirectory ling_directory_{WithGpuHeads(SmallLingConfig(kVocab))};
  const ModelDirectory kimi_directory_{WithGpuHeads(SmallKimiConfig(kVocab))};
  const ModelDirectory fp4_ling_{SmallFp4LingConfig(kVocab)};
  const Int4TinyModel int4_ling_{TinyLingDirectory()};
  const Model ling_{"Ling", ling_directory_.directory()};
  const Model kimi_{"Kimi-Linear", kimi_directory_.directory()};
};

TEST_F(HybridEngineTest, AnswersWithDraftsAreThoseWithout) {
  for (const Model& model : {ling_, kimi_}) ExpectLookedUpDraftsToChangeNothing(model);
}

TEST_F(HybridEngineTest, AnswersWithTheModuleAreThoseWithout) {
  ExpectTheModulesDraftsToChangeNothing(ling_);
}

TEST_F(HybridEngineTest, ChunksPreemptionsAndPrefixesChangeNoBit) {
  for (const Model& model : {ling_, kimi_}) {
    ExpectChunksPreemptionsAndPrefixesToChangeNothing(model, DraftMethod::kNgram);
  }
}

TEST_F(HybridEngineTest, OfCodesAnswersWithDraftsAreThoseWithout) {
  for (const Model& model : ModelsOfCodes()) {
    ExpectLookedUpDraftsToChangeNothing(model);
    ExpectTheModulesDraftsToChangeNothing(model);
  }
}

TEST_F(HybridEngineTest, OfCodesChunksPreemptionsAndPrefixesChangeNoBit) {
  for (const Model& model : ModelsOfCodes()) {
    ExpectChunksPreemptionsAndPrefixesToChangeNothing(model, DraftMethod::kMtp);
  }
}

}  // namespace
}  // namespace outrider::cuda
