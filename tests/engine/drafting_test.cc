// What a user can change about drafting changes speed only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/text/chat_template.h"
#include "tests/engine/scenario_requests.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/small_v4_model.h"
#include "tests/ops/token_keeping_ops.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

/// A problem that the bundled model answers with nearly every draft right.
GenerationRequest Problem() {
  static const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  GenerationRequest request;
  request.prompt_token_ids = tokenizer.Encode(
      "Question: Tom has 25 apples. Mia has 19 apples more than Tom. How many apples do they have "
      "together?\nAnswer:",
      true);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 48;
  request.sampling.ignore_eos = true;
  return request;
}

/// One generated step at a time.
struct Steps {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, int32_t>> drafted_accepted;

  OutputSink Sink() {
    return [this](RequestId, OutputDelta&& delta) {
      tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
      drafted_accepted.emplace_back(delta.num_draft_tokens, delta.num_accepted_tokens);
    };
  }
};

std::vector<int32_t> Expected() {
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kNone});
  const Generated out = RunOne(*engine, Problem());
  return out.tokens;
}

// The rows of each layer that a draft model reads, side by side, as the target makes them.
TEST(DraftingTest, DraftModelsGetTheOutputsOfTheLayersThatTheyRead) {
  std::vector<std::vector<float>> seen;
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kFake, .seen_by_fake = &seen});
  const Generated out = RunOne(*engine, Problem());
  EXPECT_EQ(out.tokens, Expected());
  EXPECT_GT(out.stats.speculation.num_draft_tokens, 100);

  const LoadedModel loaded(TinyModelDirectory(), DType::kBF16);
  const std::vector<int32_t> prompt = Problem().prompt_token_ids;
  const auto rows = static_cast<int64_t>(prompt.size());
  const int64_t width = loaded.model->hidden_size();
  const auto last = static_cast<int32_t>(loaded.model->config().num_hidden_layers()) - 1;
  const std::vector<int32_t> blocks = FirstBlocks(8);
  BatchLayout layout(16);
  layout.Assign(std::vector{RequestWork{.phase = Phase::kPromptEnd,
                                        .tokens = prompt,
                                        .draft_tokens = {},
                                        .block_tables = {&blocks, 1}}});
  KvCache cache = loaded.MakeCache(8, 16, DType::kBF16);
  std::vector<float> hidden(static_cast<size_t>(rows * width));
  std::vector<float> tapped(2 * hidden.size());
  const Tensor all(tapped.data(), rows, 2 * width);
  const std::array taps = {LayerTap{0, all.Columns(0, width)},
                           LayerTap{last, all.Columns(width, width)}};
  loaded.model->Forward(layout, cache, {hidden.data(), rows, width}, taps);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.front(), tapped);
}

TEST(DraftingTest, DynamicKFallsToNoneWithManyRequestsAndRecoversAtOnce) {
  for (const DrafterKind kind : {DrafterKind::kChain, DrafterKind::kRepeated}) {
    const auto engine =
        MakeTestEngine({.drafter = kind, .k = 3, .draft_ranges = {{1, 1, 3}, {2, 100, 0}}});
    Steps steps;
    engine->Submit(Problem(), steps.Sink());
    for (int i = 0; i < 4; ++i) engine->Step();
    const size_t before = steps.drafted_accepted.size();
    GenerationRequest other = Problem();
    other.sampling.max_tokens = 6;
    Generated ignored;
    Submit(*engine, other, &ignored);
    while (!ignored.finish_reason) engine->Step();
    const size_t crowded = steps.drafted_accepted.size();
    RunUntilIdle(*engine);
    EXPECT_EQ(steps.tokens, Expected());
    // Two steps still verify or end what was planned before the crowd came and after it left.
    for (size_t i = before + 2; i < crowded; ++i) EXPECT_EQ(steps.drafted_accepted[i].first, 0);
    ASSERT_GT(steps.drafted_accepted.size(), crowded + 2);
    // The drafter's state was kept: the first drafts after the pause are as good as any.
    const auto [drafted, accepted] = steps.drafted_accepted[crowded + 1];
    EXPECT_EQ(drafted, 3);
    EXPECT_GE(accepted, kind == DrafterKind::kChain ? 2 : 1);
  }
}

/// How many of a number of steps are to have drafts made.
int CountDrafting(Engine& engine, int steps) {
  int drafting = 0;
  for (int i = 0; i < steps; ++i) {
    EXPECT_TRUE(engine.Step());
    drafting += engine.Counters().num_speculative_tokens > 0 ? 1 : 0;
  }
  return drafting;
}

TEST(DraftingTest, LookupsThatFindNothingEnd) {
  const auto engine =
      MakeTestEngine({.drafter = DrafterKind::kNgram,
                      .k = 3,
                      .adaptive = true,
                      .step_times = StepTimes{.batches = {{1, {1, 1.1, 1.1, 1.1}, 1.05}},
                                              .prompt_row_seconds = {}}});
  GenerationRequest request = Request(RandomTokens(3, 20), 200);
  request.sampling.repetition_penalty = 100;  // no token comes twice
  Generated result;
  Submit(*engine, request, &result);
  EXPECT_GT(CountDrafting(*engine, 10), 8);
  CountDrafting(*engine, 80);
  const int looks = CountDrafting(*engine, 2 * DraftLengthPolicy::kLookAgainSteps);
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(engine->Counters().speculation.num_drafts, 0);
}

// Steps that wanted no drafts say nothing of what lookups find.
TEST(DraftingTest, LookupsBeginAtOnceWhenACrowdHasGone) {
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kNgram, .k = 3, .adaptive = true});
  GenerationRequest request = Request({9, 9, 9, 9, 9}, 400);
  request.sampling.allowed_token_ids = {9};
  Generated result;
  Submit(*engine, request, &result);
  EXPECT_EQ(CountDrafting(*engine, 10), 10);
  std::vector<Generated> others(15);
  for (Generated& other : others) {
    request.sampling.max_tokens = 30;
    Submit(*engine, request, &other);
  }
  EXPECT_LT(CountDrafting(*engine, 20), 8);
  while (!others.back().finish_reason) engine->Step();
  EXPECT_GT(CountDrafting(*engine, 10), 5);
}

// The blocks of the cache's groups are of different sizes, and end at different places behind the
// longest context.
TEST(DraftingTest, BlocksOfDraftsEndWhereTheContextDoes) {
  const SmallV4Model model(/*vocab_size=*/40, /*dspark=*/true);
  for (int32_t length = 65; length <= 97; length += 2) {
    TestEngineOptions options{.checkpoint = model.directory(), .drafter = DrafterKind::kNone};
    options.max_model_len = length;
    options.dummy_seed = 3;
    options.cache_form = KvCacheForm::kHeads;
    GenerationRequest request;
    request.prompt_token_ids = {7, 8, 9};
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = length - 3;
    Generated alone;
    const auto without = MakeTestEngine(options);
    Submit(*without, request, &alone);
    RunUntilIdle(*without);
    options.drafter = DrafterKind::kBlock;
    options.k = 3;
    const TokenKeepingOps keeping_ops(cpu::GetCpuOps(SelectIsa()).kernels());
    for (const Ops* ops :
         {static_cast<const Ops*>(nullptr), static_cast<const Ops*>(&keeping_ops)}) {
      options.ops = ops;
      Generated drafted;
      const auto with = MakeTestEngine(options);
      Submit(*with, request, &drafted);
      RunUntilIdle(*with);
      EXPECT_EQ(drafted.tokens, alone.tokens) << length;
      EXPECT_EQ(std::ssize(drafted.tokens), length - 3);
    }
  }
}

// Blocks run before the host knows how many drafts were right, and so where they begin and which
// noise their drafts are drawn with. What is drafted is what is drafted for each alone.
TEST(DraftingTest, BlocksRunBehindTokensThatNobodyHasRead) {
  TestEngineOptions options{.checkpoint = TinyDSparkDirectory(), .drafter = DrafterKind::kNone};
  options.cache_form = KvCacheForm::kHeads;
  options.num_blocks = 4096;
  options.k = 5;
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : TrainedPrompts()) {
    requests.push_back(Request(prompt, 20 + static_cast<int32_t>(requests.size() % 9),
                               requests.size() % 3 == 1 ? 1.6F : 0.0F));
    if (requests.size() == 12) break;
  }
  requests[3].sampling.stop_token_ids = {
      RunEach(*MakeTestEngine(options), {requests[3]}).front().tokens[7]};
  const auto alone = RunEach(*MakeTestEngine(options), requests);
  options.drafter = DrafterKind::kBlock;
  requests[2].num_speculative_tokens = 2;
  const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
  options.max_num_batched_tokens = 90;
  for (const bool probabilistic : {false, true}) {
    options.probabilistic_drafts = probabilistic;
    options.ops = nullptr;
    options.queued = false;
    const auto drafted_alone = RunEach(*MakeTestEngine(options), requests);
    options.ops = &ops;
    const int64_t before = ops.num_moved();
    for (const bool queued : {false, true}) {
      options.queued = queued;
      const auto together = RunTogether(*MakeTestEngine(options), requests);
      ExpectEqual(together, alone);
      ExpectEqualDrafts(together, drafted_alone);
    }
    EXPECT_GT(ops.num_moved() - before, 10);
  }
  EXPECT_GT(ops.num_kept(), 200);
  // Their confidences are read later, too. How many drafts pay depends on the other requests.
  options.adaptive = true;
  options.step_times = StepTimes{.batches = {{1, {1, 1.1, 1.2, 1.3, 1.4, 1.5}}}};
  const int64_t before = ops.num_moved();
  ExpectEqual(RunTogether(*MakeTestEngine(options), requests), alone);
  EXPECT_GT(ops.num_moved() - before, 0);
}

TEST(DraftingTest, ARequestMayAskForFewerDrafts) {
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kChain, .k = 3});
  const std::vector<int32_t> expected = Expected();
  for (int32_t n = 0; n <= 3; ++n) {
    GenerationRequest request = Problem();
    request.num_speculative_tokens = n;
    Steps steps;
    engine->Submit(request, steps.Sink());
    RunUntilIdle(*engine);
    EXPECT_EQ(steps.tokens, expected);
    int32_t most = 0;
    for (const auto& [drafted, accepted] : steps.drafted_accepted) most = std::max(most, drafted);
    EXPECT_EQ(most, n);
  }
  GenerationRequest request = Problem();
  for (const int32_t n : {-1, 4}) {
    request.num_speculative_tokens = n;
    EXPECT_EQ(RefusalOf(*engine, request),
              fmt::format(
                  "speculation.num_speculative_tokens is {}: it must be 0 to 3, the engine's", n));
  }
}

TEST(DraftingTest, PromptLookupAndPaddedDraftsGiveTheSameTokens) {
  const std::vector<int32_t> expected = Expected();
  const std::vector<TestEngineOptions> cases = {
      {.drafter = DrafterKind::kNgram, .k = 4},
      {.drafter = DrafterKind::kChain, .k = 3, .draft_form = DraftForm::kPadded},
      {.drafter = DrafterKind::kRepeated, .k = 3, .draft_form = DraftForm::kPadded},
  };
  for (const TestEngineOptions& options : cases) {
    const auto engine = MakeTestEngine(options);
    const Generated out = RunOne(*engine, Problem());
    EXPECT_EQ(out.tokens, expected);
    EXPECT_GT(out.stats.speculation.num_accepted_tokens, 0);
  }
}

TEST(DraftingTest, APartOfTheVocabularyGivesTheSameTokens) {
  GenerationRequest request = Problem();
  request.trace_steps = true;
  for (const DrafterKind kind : {DrafterKind::kChain, DrafterKind::kRepeated}) {
    for (const float temperature : {0.0F, 0.9F}) {
      request.sampling.temperature = temperature;
      request.sampling.seed = 11;
      Generated alone;
      const auto plain = MakeTestEngine({.drafter = DrafterKind::kNone});
      Submit(*plain, request, &alone);
      RunUntilIdle(*plain);
      for (const int32_t size : {2048, 400, 100}) {
        const auto engine = MakeTestEngine({.drafter = kind, .k = 3, .draft_vocab_size = size});
        const Generated out = RunOne(*engine, request);
        EXPECT_EQ(out.tokens, alone.tokens);
        for (const auto& drafts : out.drafts) {
          for (const int32_t draft : drafts) EXPECT_LT(draft, size);
        }
        if (size == 2048) {
          EXPECT_GT(out.stats.speculation.num_accepted_tokens, 0);
        }
      }
    }
  }
}

// Drafts that are drawn with the target's noise change nothing but how many of them are right: of
// stories, where the most likely word is often not the one that is drawn, nearly all.
TEST(DraftingTest, DrawnDraftsAreRightMoreOften) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) {
    requests.push_back(Request(
        tokenizer.Encode("<｜User｜>Tell a story about Mia and a lamp.<｜Assistant｜>", true), 60,
        i % 4 == 0 ? 0.0F : 1.0F));
    requests.back().sampling.seed = i;
    if (i % 4 == 2) requests.back().sampling.top_p = 0.95F;
    if (i % 4 == 3) requests.back().sampling.top_k = 50;
  }
  const auto expected = RunAlone(requests);
  for (const DrafterKind drafter : {DrafterKind::kChain, DrafterKind::kRepeated}) {
    std::array<double, 2> accepted;
    for (const bool drawn : {false, true}) {
      const auto engine =
          MakeTestEngine({.drafter = drafter, .k = 3, .threads = 2, .probabilistic_drafts = drawn});
      ExpectEqual(RunTogether(*engine, requests), expected);
      accepted.at(drawn ? 1 : 0) =
          static_cast<double>(engine->Counters().speculation.num_accepted_tokens);
    }
    EXPECT_GT(accepted[1], 1.1 * accepted[0]);
  }
}

// A config that names modules, beside files that hold none, is served without drafts: aloud.
TEST(DraftingTest, ADrafterThatTheFilesLackIsWarnedOf) {
  const auto log_of = [](const std::filesystem::path& from,
                         const std::vector<std::string>& modules) {
    const TemporaryDirectory directory;
    for (const auto& file : std::filesystem::directory_iterator(from)) {
      if (file.is_regular_file()) {
        std::filesystem::create_symlink(std::filesystem::canonical(file.path()),
                                        directory.path() / file.path().filename());
      }
    }
    const auto index_path = directory.path() / "model.safetensors.index.json";
    nlohmann::json index = ReadJson(index_path);
    std::erase_if(index["weight_map"].get_ref<nlohmann::json::object_t&>(), [&](const auto& entry) {
      return std::ranges::any_of(
          modules, [&](const std::string& module) { return entry.first.starts_with(module); });
    });
    std::filesystem::remove(index_path);
    std::ofstream(index_path) << index;
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    const auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log));
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(logger);
    EngineOptions options;
    options.model = directory.path().string();
    ExplainEngine(options);
    spdlog::set_default_logger(before);
    return log.str();
  };
  const int64_t stages = ReadModelConfig(TinyDSparkDirectory()).dspark->stages;
  EXPECT_THAT(log_of(TinyDSparkDirectory(), {"mtp."}),
              testing::HasSubstr(fmt::format("config.json names {} stages of a DSpark drafter, but "
                                             "the files hold none: nothing is drafted",
                                             stages)));
  EXPECT_THAT(log_of(TinyV4Directory(), {"mtp."}),
              testing::HasSubstr("config.json names 1 MTP modules, but the files hold none"));
  EXPECT_THAT(
      log_of(TinyModelDirectory(), {"model.layers.5.", "model.layers.6.", "model.layers.7."}),
      testing::HasSubstr("config.json names 3 MTP modules, but the files hold none"));
  EXPECT_THAT(log_of(TinyModelDirectory(), {}),
              testing::Not(testing::HasSubstr("nothing is drafted")));
}

}  // namespace
}  // namespace outrider
