// DeepSeek-V4 on the GPU, the bundled checkpoints loaded as a server loads them: answers with its
// MTP module and with DSpark blocks are those without, bit for bit, however prompts are cut, pages
// taken away and prefixes found; and texts beside the processor's. Needs a GPU of compute
// capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/engine/cuda/engine_answers.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

/// Prompts of many lengths, greedy and drawn answers.
std::vector<GenerationRequest> Requests(size_t count) {
  std::mt19937 random(5);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests[i];
    // Windows of 128 tokens, groups of 4 and 128: prompts end before, at and behind their ends.
    const auto length = static_cast<size_t>(i % 4 == 0 ? 120 + random() % 20 : 1 + random() % 420);
    for (size_t t = 0; t < length; ++t) {
      // A pattern: drafts are then sometimes right.
      request.prompt_token_ids.push_back(t >= 9 && random() % 8 != 0
                                             ? request.prompt_token_ids[t - 9]
                                             : static_cast<int32_t>(6 + random() % 1500));
    }
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.7F;
    request.sampling.seed = 10 + i;
    request.sampling.max_tokens = kAnswerTokens;
    request.sampling.ignore_eos = true;
    if (i % 3 != 0) request.sampling.logprobs = 2;
    if (i % 5 == 4) request.sampling.prompt_logprobs = 1;
  }
  return requests;
}

EngineOptions OptionsOf(const std::filesystem::path& model, int32_t drafts) {
  EngineOptions options = SmallEngineOptions(16);
  options.model = model.string();
  options.max_model_len = 700;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  options.speculation.num_speculative_tokens = drafts;
  return options;
}

class V4EngineTest : public HopperTest<> {
 protected:
  /// Each request alone, without drafts, in one piece.
  static Answers Alone(const std::filesystem::path& model,
                       const std::vector<GenerationRequest>& requests) {
    EngineOptions options = OptionsOf(model, 0);
    options.enable_prefix_caching = false;
    return RunAll(options, requests, /*alone=*/true);
  }
};

TEST_F(V4EngineTest, AnswersWithTheModuleAreThoseWithout) {
  const std::vector<GenerationRequest> requests = Requests(20);
  const Answers plain = Alone(TinyV4Directory(), requests);
  for (const int32_t drafts : {0, 1, 2, 3}) {
    const Answers got = RunAll(OptionsOf(TinyV4Directory(), drafts), requests);
    ExpectEqual(got, plain, fmt::format("{} drafts", drafts));
    if (drafts > 0) {
      EXPECT_GT(got.counters.speculation.num_accepted_tokens, 0);
    }
  }
}

TEST_F(V4EngineTest, AnswersWithBlocksAreThoseWithout) {
  const std::vector<GenerationRequest> requests = Requests(20);
  const Answers plain = Alone(TinyDSparkDirectory(), requests);
  for (const DraftForm form : {DraftForm::kCompacted, DraftForm::kPadded}) {
    for (const int32_t drafts : {0, 2, 5}) {
      for (const bool adaptive : {false, true}) {
        EngineOptions options = OptionsOf(TinyDSparkDirectory(), drafts);
        options.speculation.draft_form = form;
        options.speculation.adaptive = adaptive && drafts > 0;
        const Answers got = RunAll(options, requests);
        ExpectEqual(got, plain, fmt::format("{} drafts, adaptive {}", drafts, adaptive));
        // Adaptive lengths follow the times that steps take.
        if (drafts > 0 && !adaptive) {
          EXPECT_GT(got.counters.speculation.num_accepted_tokens, 0);
        }
      }
    }
  }
}

// A step is one graph of the target and one of its draft: taps, entries, blocks and draws. Only the
// prompt and its entries are no graphs.
TEST_F(V4EngineTest, ADraftOfBlocksIsOneGraph) {
  GenerationRequest request = Requests(1).front();
  request.sampling.max_tokens = 80;
  for (const bool drawn : {false, true}) {
    SCOPED_TRACE(drawn ? "drawn" : "the likeliest");
    if (drawn) request.sampling.temperature = 0.7F;
    EngineOptions options = OptionsOf(TinyDSparkDirectory(), 5);
    options.enable_prefix_caching = false;
    options.speculation.adaptive = false;
    options.speculation.probabilistic_drafts = drawn;
    const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
    EngineCounters before;
    // A graph is seen, recorded and repeated.
    for (int run = 0; run < 4; ++run) {
      before = loaded.engine->Counters();
      EXPECT_EQ(RunOne(*loaded.engine, request).tokens.size(), 80);
    }
    const EngineCounters after = loaded.engine->Counters();
    ASSERT_TRUE(after.gpu && before.gpu);
    const int64_t steps = after.num_steps - before.num_steps;
    const int64_t repeated = after.gpu->passes_repeated - before.gpu->passes_repeated;
    const int64_t launched = after.gpu->passes_launched - before.gpu->passes_launched;
    std::printf("%lld steps: %lld graphs, %lld passes without one\n", static_cast<long long>(steps),
                static_cast<long long>(repeated), static_cast<long long>(launched));
    EXPECT_GT(steps, 10);
    EXPECT_LE(launched, 4);  // two of each part of the prompt
    EXPECT_LE(repeated + launched, 2 * steps + 1);
    // Behind the last step nothing is drafted.
    EXPECT_GE(repeated + launched, 2 * steps - 2);
  }
}

// The device moves blocks and the positions that drafts are drawn with; a wrong one would change
// drafts, so fewer would be right. Where a bias of 0 makes the host look at tokens first, it knows
// where blocks begin.
TEST_F(V4EngineTest, DraftsLaunchedEarlyAreThoseLaunchedLate) {
  for (const bool adaptive : {false, true}) {
    EngineOptions options = OptionsOf(TinyDSparkDirectory(), 5);
    options.enable_prefix_caching = false;
    options.speculation.adaptive = adaptive;
    options.speculation.probabilistic_drafts = true;
    std::vector<GenerationRequest> requests = Requests(20);
    const Answers early = RunAll(options, requests);
    for (GenerationRequest& request : requests) request.sampling.logit_bias = {{7, 0.0F}};
    const Answers late = RunAll(options, requests);
    ExpectEqual(late, early, adaptive ? "adaptive" : "fixed");
    const int64_t accepted = late.counters.speculation.num_accepted_tokens;
    EXPECT_GT(accepted, 0);
    // Adaptive lengths follow the times that steps take.
    if (!adaptive) {
      EXPECT_EQ(early.counters.speculation.num_accepted_tokens, accepted);
    }
  }
}

TEST_F(V4EngineTest, ChunksPreemptionsAndPrefixesChangeNoBit) {
  std::vector<GenerationRequest> requests = Requests(20);
  for (size_t i = 10; i < requests.size(); ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_token_ids;
    std::vector<int32_t> all(300);  // they begin alike
    for (size_t t = 0; t < all.size(); ++t) all[t] = static_cast<int32_t>(6 + t * 37 % 1500);
    all.insert(all.end(), prompt.begin(), prompt.end());
    prompt = std::move(all);
    prompt.resize(std::min<size_t>(prompt.size(), 650));
  }
  struct Model {
    std::filesystem::path directory;
    int32_t drafts;
  };
  for (const Model& model :
       {Model{TinyV4Directory(), 3}, {TinyDSparkDirectory(), 5}, {TinyDSparkDirectory(), 0}}) {
    const Answers plain = Alone(model.directory, requests);
    // Room for a few requests of this length, and for all.
    for (const auto& [step, megabytes] : {std::pair{37, 24}, {200, 24}, {200, 256}}) {
      EngineOptions options = OptionsOf(model.directory, model.drafts);
      options.max_num_batched_tokens = step;
      options.kv_cache_memory_bytes = int64_t{megabytes} << 20;
      const Answers got = RunAll(options, requests);
      ExpectEqual(got, plain,
                  fmt::format("{} drafts, steps of {}, {} MB", model.drafts, step, megabytes));
      if (megabytes > 100) {
        EXPECT_GT(got.counters.prefix_cache_hits, 0);
      }
    }
  }
}

TEST_F(V4EngineTest, AnswersWithAnFp8CacheAreThoseWithoutDrafts) {
  const std::vector<GenerationRequest> requests = Requests(20);
  struct Model {
    std::filesystem::path directory;
    int32_t drafts;
    bool published;
  };
  for (const Model& model : {Model{TinyV4Directory(), 3, false},
                             {TinyDSparkDirectory(), 5, false},
                             {TinyDSparkDirectory(), 5, true}}) {
    const auto options_of = [&](const std::filesystem::path& directory, int32_t drafts) {
      EngineOptions options = OptionsOf(directory, drafts);
      options.kv_cache_dtype = DType::kF8E4M3;
      options.published_cache = model.published;
      return options;
    };
    EngineOptions options = options_of(model.directory, 0);
    options.enable_prefix_caching = false;
    const Answers plain = RunAll(options, requests, /*alone=*/true);
    for (const auto& [step, megabytes] : {std::pair{0, 256}, {37, 24}, {200, 24}}) {
      EngineOptions with_drafts = options_of(model.directory, model.drafts);
      if (step > 0) with_drafts.max_num_batched_tokens = step;
      with_drafts.kv_cache_memory_bytes = int64_t{megabytes} << 20;
      ExpectEqual(RunAll(with_drafts, requests), plain,
                  fmt::format("{} drafts, steps of {}, {} MB", model.drafts, step, megabytes));
    }
  }
}

TEST_F(V4EngineTest, RejectionSamplingRunsOverBlocks) {
  const std::vector<GenerationRequest> requests = Requests(12);
  EngineOptions options = OptionsOf(TinyDSparkDirectory(), 5);
  options.speculation.rejection_sample_method = RejectionMethod::kStandard;
  options.speculation.probabilistic_drafts = true;
  const Answers got = RunAll(options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got.results[i].tokens.size(), 40) << "request " << i;
  }
  EXPECT_GT(got.counters.speculation.num_accepted_tokens, 0);
}

// Sums have another order, so some texts may differ where two tokens are nearly as likely; with a
// cache of 8 bits too.
TEST_F(V4EngineTest, TextsAreTheProcessors) {
  EngineOptions options = OptionsOf(TinyDSparkDirectory(), 5);
  options.device = DeviceKind::kCpu;
  options.dtype = DType::kBF16;
  const LoadedEngine processor = LoadEngine(options, [](int64_t, int64_t) {});
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 30; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.prompt_token_ids = processor.tokenizer->Encode(
        fmt::format("Noa is {} years old. Elsa is {} years older than Noa. How old will Elsa be in "
                    "{} years?",
                    i + 5, 3 * i % 17 + 1, i % 9 + 2),
        /*add_special_tokens=*/true);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 60;
  }
  options.device = DeviceKind::kCuda;
  const Answers on_gpu = RunAll(options, requests);
  size_t equal = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generated result = RunOne(*processor.engine, requests[i]);
    if (result.tokens == on_gpu.results[i].tokens) ++equal;
  }
  std::printf("%zu of %zu texts are the processor's\n", equal, requests.size());
  EXPECT_GE(equal * 10, requests.size() * 9);
  options.kv_cache_dtype = DType::kF8E4M3;
  for (const bool published : {false, true}) {
    options.published_cache = published;
    const Answers rounded = RunAll(options, requests);
    size_t same = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (rounded.results[i].tokens == on_gpu.results[i].tokens) ++same;
    }
    std::printf("%zu of %zu texts are the same with an FP8 cache%s\n", same, requests.size(),
                published ? ", rounded as published" : "");
    EXPECT_GE(same * 10, requests.size() * 8);
  }
  const double accepted = processor.engine->Counters().speculation.MeanAcceptanceLength();
  EXPECT_NEAR(on_gpu.counters.speculation.MeanAcceptanceLength(), accepted, 0.1 * accepted);
}

TEST_F(V4EngineTest, CachesOfFloat32AreRefusedByName) {
  EngineOptions options = OptionsOf(TinyDSparkDirectory(), 0);
  options.kv_cache_dtype = DType::kF32;
  try {
    LoadEngine(options, [](int64_t, int64_t) {});
    FAIL() << "it starts";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--kv-cache-dtype float32: use bfloat16 or fp8"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace outrider::cuda
