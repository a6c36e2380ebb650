// An engine with an EAGLE-3 drafter: what is drafted, what is decided, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/engine/checkpoints.h"
#include "outrider/engine/engine_loader.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"

namespace outrider {
namespace {

using testing::HasSubstr;

EngineOptions Eagle3Options(const std::filesystem::path& model,
                            const std::filesystem::path& drafter) {
  EngineOptions options;
  options.model = model.string();
  options.num_threads = 1;
  options.kv_cache_memory_bytes = int64_t{8} << 20;
  options.speculation.method = DraftMethod::kEagle3;
  options.speculation.model = drafter.string();
  options.speculation.num_speculative_tokens = 4;
  return options;
}

std::string RefusalOf(const EngineOptions& options) {
  try {
    (void)ExplainEngine(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

struct GoldenDrafts {
  const char* drafter;
  const char* target;
};

class Eagle3DraftsTest : public testing::TestWithParam<GoldenDrafts> {};

// What the strategy drafts with the model that the golden files were made with.
TEST_P(Eagle3DraftsTest, AreThoseOfTheReference) {
  const std::filesystem::path directory = GoldenDirectory() / GetParam().drafter;
  const GoldenFile golden(directory / "golden.safetensors");
  for (const KvCacheForm form : kAllKvCacheForms) {
    EngineOptions options = Eagle3Options(GoldenDirectory() / GetParam().target, directory);
    options.dtype = DType::kF32;
    options.kv_cache_form = form;
    const LoadedEngine loaded = LoadEngine(options, nullptr);
    EXPECT_EQ(loaded.num_speculative_tokens, 4);
    for (int c = 0; c < 2; ++c) {
      GenerationRequest request;
      request.prompt_token_ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 6;
      request.sampling.ignore_eos = true;
      request.trace_steps = true;
      const Generated out = RunOne(*loaded.engine, request);
      EXPECT_EQ(out.tokens.front(), golden.Read<int32_t>(fmt::format("case{}.next", c)).back());
      ASSERT_GE(out.drafts.size(), 2U);
      EXPECT_EQ(out.drafts[1], golden.Read<int32_t>(fmt::format("case{}.drafts", c)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, Eagle3DraftsTest,
                         testing::Values(GoldenDrafts{"tiny-eagle3", "tiny-v3-options"},
                                         GoldenDrafts{"tiny-eagle3.1", "tiny-v2-lite"}),
                         [](const auto& test) {
                           return std::string(test.index == 0 ? "eagle3" : "eagle31");
                         });

TEST(Eagle3, IsExplained) {
  const LoadedEngine explained = ExplainEngine(
      Eagle3Options(GoldenDirectory() / "tiny-v3-options", GoldenDirectory() / "tiny-eagle3"));
  std::string all;
  for (const Decision& d : explained.decisions) {
    all += fmt::format("{}: {} ({})\n", d.what, d.value, d.why);
  }
  EXPECT_THAT(all, HasSubstr("drafter: RepeatedDrafter, k = 4 (one EAGLE-3 layer of "));
  EXPECT_THAT(all, HasSubstr("it reads the outputs of layers 1, 2)"));
  EXPECT_THAT(all, HasSubstr("draft vocabulary: 100 of 264 tokens (the drafter's own head)"));
  EXPECT_TRUE(explained.memory.mtp_weights.empty());
  EXPECT_GT(SumOf(explained.memory.drafter_weights), 40000);
  EXPECT_LT(SumOf(explained.memory.drafter_weights), 100000);
  std::vector<std::string> groups;
  int64_t bytes = 0;
  for (const WeightGroup& group : explained.memory.weight_groups) {
    groups.push_back(group.name);
    if (group.name.starts_with("drafter's ")) bytes += SumOf(group.packed);
  }
  EXPECT_EQ(bytes, SumOf(explained.memory.drafter_weights));
  EXPECT_THAT(groups, testing::IsSupersetOf({"routers", "router biases", "drafter's attention",
                                             "drafter's draft inputs", "drafter's head"}));
  EXPECT_EQ(std::ranges::count(groups, "routers"), 1);
}

/// Nine tokens of a model with random weights and a drafter of its size.
void ExpectRunsWithRandomWeights(const std::filesystem::path& model) {
  const SmallEagle3 drafter(model, /*version31=*/true);
  EngineOptions options = Eagle3Options(model, drafter.directory());
  options.load_format = LoadFormat::kDummy;
  const LoadedEngine loaded = LoadEngine(options, nullptr);
  GenerationRequest request;
  request.prompt_token_ids = {3, 4, 5};
  request.sampling.max_tokens = 9;
  request.sampling.ignore_eos = true;
  const Generated out = RunOne(*loaded.engine, request);
  EXPECT_EQ(out.tokens.size(), 9U);
}

TEST(Eagle3, RunsWithRandomWeights) {
  ExpectRunsWithRandomWeights(SmallStepModel(200).directory());
}

// Its rows read entries that an indexer chooses, the drafter's do not.
TEST(Eagle3, RunsBesideAnIndexer) {
  ExpectRunsWithRandomWeights(SmallSparseModel(200).directory());
}

/// A copy of the golden drafter with another config.
class ChangedDrafter : public ModelDirectory {
 public:
  explicit ChangedDrafter(const std::function<void(nlohmann::json&)>& change) {
    const std::filesystem::path from = GoldenDirectory() / "tiny-eagle3";
    std::filesystem::copy(from / "model.safetensors", directory());
    nlohmann::json config = ReadJson(from / "config.json");
    change(config);
    WriteConfig(config);
  }
};

TEST(Eagle3, RefusesWhatDoesNotFit) {
  const std::filesystem::path target = GoldenDirectory() / "tiny-v3-options";
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& change) {
    const ChangedDrafter drafter(change);
    return RefusalOf(Eagle3Options(target, drafter.directory()));
  };
  EXPECT_THAT(refusal([](auto& c) { c["vocab_size"] = 300; }),
              AllOf(HasSubstr("\"vocab_size\" is 300"), HasSubstr("needs 264")));
  EXPECT_THAT(refusal([](auto& c) { c["target_hidden_size"] = 96; }),
              AllOf(HasSubstr("\"target_hidden_size\" is 96"), HasSubstr("needs 64")));
  EXPECT_THAT(refusal([](auto& c) {
                c["hidden_size"] = 96;
                c["target_hidden_size"] = 64;
              }),
              AllOf(HasSubstr("\"hidden_size\" is 96"), HasSubstr("needs 64")));
  EXPECT_THAT(refusal([](auto& c) { c["num_hidden_layers"] = 2; }),
              HasSubstr("drafters of one layer are supported"));
  EXPECT_THAT(refusal([](auto& c) { c["logit_scale"] = 2; }), HasSubstr("logit_scale"));
  EXPECT_THAT(refusal([](auto& c) { c["draft_vocab_size"] = 90; }),
              HasSubstr("lm_head.weight is [100, 64], not [90, 64]"));
  EXPECT_THAT(refusal([](auto& c) { c["fc_norm"] = true; }), HasSubstr("fc_norm.0.weight"));
  EXPECT_THAT(refusal([](auto& c) { c["tie_word_embeddings"] = true; }),
              HasSubstr("a drafter has a head of its own"));
  EXPECT_THAT(refusal([](auto& c) { c["architectures"] = {"LlamaForCausalLMEagle3"}; }),
              HasSubstr("LlamaForCausalLMEagle3"));
  for (const nlohmann::json& ids : {nlohmann::json{2, 4}, {3, 2}, {2, 2}, {0, 2}, {1, 3}}) {
    EXPECT_THAT(
        refusal([&](auto& c) { c["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids; }),
        HasSubstr("the drafter would read the target at the layers"))
        << ids;
  }
  EXPECT_THAT(refusal([](auto& c) { c.erase("eagle_config"); }),
              HasSubstr("would read the target at the layers [2, 1, 0]"));
  EXPECT_THAT(RefusalOf(Eagle3Options(target, target)), HasSubstr("is no EAGLE-3 drafter"));
  EXPECT_THAT(RefusalOf(Eagle3Options(GoldenDirectory() / "tiny-eagle3", target)),
              HasSubstr("is a drafter: give the model that it was trained for"));
}

TEST(Eagle3, LayersOfTheUserReplaceThoseOfTheConfig) {
  EngineOptions options =
      Eagle3Options(GoldenDirectory() / "tiny-v3-options", GoldenDirectory() / "tiny-eagle3");
  const auto taps = [&](std::vector<int32_t> ids) {
    options.speculation.eagle_aux_hidden_state_layer_ids = std::move(ids);
    Decisions decisions;
    return PlanDrafts(options, OpenCheckpoints(options).facts, decisions).taps;
  };
  EXPECT_EQ(taps({}), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(taps({1, 3}), (std::vector<int32_t>{0, 2}));
  options.speculation.eagle_aux_hidden_state_layer_ids = {1, 2, 3};
  EXPECT_THAT(RefusalOf(options), HasSubstr("2 are needed"));
}

TEST(Eagle3, NeedsItsOptionsTogether) {
  EngineOptions options =
      Eagle3Options(GoldenDirectory() / "tiny-v3-options", GoldenDirectory() / "tiny-eagle3");
  options.speculation.draft_vocab_size = 50;
  EXPECT_THAT(RefusalOf(options), HasSubstr("draft_vocab_size needs the method mtp"));
  options.speculation.draft_vocab_size.reset();
  options.speculation.method = DraftMethod::kNgram;
  EXPECT_THAT(RefusalOf(options), HasSubstr("needs the method eagle3"));
  options.speculation.model.clear();
  options.speculation.eagle_aux_hidden_state_layer_ids = {2};
  EXPECT_THAT(RefusalOf(options), HasSubstr("needs the method eagle3"));
  options.speculation.method = DraftMethod::kEagle3;
  EXPECT_THAT(RefusalOf(options), HasSubstr("name its directory"));
}

// tests/networks checks what the files of a drafter must hold; a vocabulary that is none is refused
// when it is read.
TEST(Eagle3, RefusesAVocabularyThatIsNone) {
  const ChangedDrafter drafter([](nlohmann::json&) {});
  std::fstream file(drafter.directory() / "model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  for (const TensorInfo& info : ReadSafetensorsHeader(drafter.directory() / "model.safetensors")) {
    if (info.name != "d2t") continue;
    const int64_t added = -1;  // the token before, which is taken
    file.seekp(static_cast<std::streamoff>(info.begin) + 8 * 5);
    file.write(reinterpret_cast<const char*>(&added), 8);
  }
  file.close();
  EXPECT_THAT(RefusalOf(Eagle3Options(GoldenDirectory() / "tiny-v3-options", drafter.directory())),
              HasSubstr("d2t makes draft token 5 the target's token 4"));
}

}  // namespace
}  // namespace outrider
