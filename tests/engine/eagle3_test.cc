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

/// Nine tokens of a model with random weights and drafters of its size, with attention of each
/// kind.
void ExpectRunsWithRandomWeights(const std::filesystem::path& model) {
  const SmallEagle3 latent(model, /*version31=*/true);
  const SmallLlamaEagle3 grouped(model);
  for (const std::filesystem::path& drafter : {latent.directory(), grouped.directory()}) {
    EngineOptions options = Eagle3Options(model, drafter);
    options.load_format = LoadFormat::kDummy;
    const LoadedEngine loaded = LoadEngine(options, nullptr);
    GenerationRequest request;
    request.prompt_token_ids = {3, 4, 5};
    request.sampling.max_tokens = 9;
    request.sampling.ignore_eos = true;
    const Generated out = RunOne(*loaded.engine, request);
    EXPECT_EQ(out.tokens.size(), 9U);
  }
}

TEST(Eagle3, RunsWithRandomWeights) {
  ExpectRunsWithRandomWeights(SmallStepModel(200).directory());
}

// Its rows read entries that an indexer chooses, the drafter's do not.
TEST(Eagle3, RunsBesideAnIndexer) {
  ExpectRunsWithRandomWeights(SmallSparseModel(200).directory());
}

/// A copy of a golden drafter with another config.
class ChangedDrafter : public ModelDirectory {
 public:
  explicit ChangedDrafter(const std::function<void(nlohmann::json&)>& change,
                          const char* name = "tiny-eagle3") {
    const std::filesystem::path from = GoldenDirectory() / name;
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
  EXPECT_THAT(refusal([](auto& c) { c["architectures"] = {"LlamaForCausalLMEagle"}; }),
              HasSubstr("LlamaForCausalLMEagle"));
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

TEST(Eagle3, RefusesLlamasAttentionThatDoesNotFit) {
  const std::filesystem::path target = GoldenDirectory() / "tiny-v3-options";
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& change) {
    const ChangedDrafter drafter(change, "tiny-eagle3-llama");
    return RefusalOf(Eagle3Options(target, drafter.directory()));
  };
  EXPECT_THAT(refusal([](auto& c) { c["head_dim"] = 23; }),
              AllOf(HasSubstr("\"head_dim\" is 23"), HasSubstr("an even number is needed")));
  EXPECT_THAT(refusal([](auto& c) { c["num_key_value_heads"] = 3; }),
              HasSubstr("a multiple of \"num_key_value_heads\", 3, is needed"));
  EXPECT_THAT(refusal([](auto& c) { c["num_attention_heads"] = 0; }),
              HasSubstr("num_attention_heads"));
  EXPECT_THAT(refusal([](auto& c) { c.erase("head_dim"); }),
              HasSubstr("q_proj.weight is [96, 128], not [64, 128]"));
  EXPECT_THAT(refusal([](auto& c) { c["rope_scaling"]["rope_type"] = "yarn"; }),
              HasSubstr("\"llama3\" and \"default\" are supported"));
  EXPECT_THAT(refusal([](auto& c) { c["rope_scaling"]["low_freq_factor"] = 4; }),
              HasSubstr("it has to be below \"high_freq_factor\", 4"));
  EXPECT_THAT(refusal([](auto& c) { c["rope_scaling"]["beta_fast"] = 32; }),
              HasSubstr("it is no key of llama3"));
  for (const char* key : {"attention_bias", "mlp_bias", "qk_norm", "use_sliding_window"}) {
    EXPECT_THAT(refusal([&](auto& c) { c[key] = true; }), HasSubstr(key));
  }
  EXPECT_THAT(refusal([](auto& c) { c["sliding_window"] = 64; }), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal([](auto& c) { c["hidden_act"] = "gelu"; }), HasSubstr("hidden_act"));
  EXPECT_THAT(refusal([](auto& c) { c["model_type"] = "mistral"; }), HasSubstr("mistral"));
  EngineOptions options = Eagle3Options(target, GoldenDirectory() / "tiny-eagle3-llama");
  options.attention_backend = AttentionBackend::kUniformPad;
  EXPECT_THAT(RefusalOf(options),
              AllOf(HasSubstr("--attention-backend uniform-pad needs latent attention"),
                    HasSubstr("use ragged")));
}

TEST(Eagle3, LlamasAttentionIsReadAsPublished) {
  const auto config_of = [](const std::function<void(nlohmann::json&)>& change) {
    const ChangedDrafter drafter(change, "tiny-eagle3-llama");
    return ReadModelConfig(drafter.directory());
  };
  // As DeepSeek-V3's drafters are published: without head_dim, rope_theta and rope_scaling.
  const ModelConfig config = config_of([](nlohmann::json& c) {
    for (const char* key : {"head_dim", "rope_theta", "rope_scaling"}) c.erase(key);
  });
  const LayerSpec& layer = config.layers.front();
  EXPECT_EQ(
      layer.attention,
      AttentionSpec(GqaSpec{.heads = 4, .kv_heads = 2, .head_dim = 16, .softmax_scale = 0.25}));
  EXPECT_EQ(layer.rotary, (RotarySpec{.dims = 16, .theta = 10000, .interleaved = false}));
  // Others name the target, or have the architecture by its other name.
  EXPECT_EQ(config_of([](auto& c) { c["model_type"] = "kimi_k2"; }).family, ModelFamily::kEagle3);
  EXPECT_EQ(config_of([](auto& c) { c["architectures"] = {"Eagle3LlamaForCausalLM"}; }).family,
            ModelFamily::kEagle3);
}

// Its text is the target's, whatever the drafter's attention is.
TEST(Eagle3, LlamasDraftsChangeNoToken) {
  const std::filesystem::path target = GoldenDirectory() / "tiny-v3-options";
  EngineOptions options = Eagle3Options(target, GoldenDirectory() / "tiny-eagle3-llama");
  GenerationRequest request;
  for (int32_t t = 0; t < 40; ++t) request.prompt_token_ids.push_back(6 + t * 7 % 200);
  request.sampling.max_tokens = 50;
  request.sampling.ignore_eos = true;
  const LoadedEngine drafted = LoadEngine(options, nullptr);
  const Generated with = RunOne(*drafted.engine, request);
  EXPECT_GT(drafted.engine->Counters().speculation.num_draft_tokens, 50);
  options.speculation = {};
  options.speculation.num_speculative_tokens = 0;
  const LoadedEngine plain = LoadEngine(options, nullptr);
  EXPECT_EQ(with.tokens, RunOne(*plain.engine, request).tokens);
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
