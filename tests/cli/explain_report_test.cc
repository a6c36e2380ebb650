// What explain prints: parameters, decisions, memory of weights; as text and as JSON.
#include "outrider/cli/explain_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "outrider/checkpoint/model_config.h"
#include "outrider/cli/parameter_count.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/kernels/kernel_table.h"
#include "tests/source_directory.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

LoadedEngine BundledModel() {
  LoadedEngine explained;
  explained.config = ReadModelConfig(SourceDirectory() / "models/tiny-v3-mtp3");
  explained.memory.kv_tokens = 1234;
  explained.decisions = {{"drafter", "ChainDrafter, k = 3", "the checkpoint has 3 MTP modules"}};
  return explained;
}

TEST(ParameterCount, EqualsTheTensorsOfTheBundledModel) {
  const ParameterCount count = CountParameters(BundledModel().config);
  EXPECT_EQ(count.target, 10'336'480);  // summed over the tensors' shapes
  EXPECT_EQ(count.mtp, 6'205'272);
  // Six of eight experts, each 3 matrices of 256 x 128, are idle in each of four layers.
  EXPECT_EQ(count.target - count.target_active, int64_t{4} * 6 * 3 * 256 * 128);
}

std::string DecisionOf(const LoadedEngine& explained, const std::string& what) {
  for (const Decision& d : explained.decisions) {
    if (d.what == what) return fmt::format("{} ({})", d.value, d.why);
  }
  return "";
}

TEST(ExplainedCacheForm, FollowsTheShapeTheFlagAndTheBackend) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine by_shape = ExplainEngine(options);
  EXPECT_EQ(by_shape.kv_cache_form, KvCacheForm::kHeads);
  EXPECT_EQ(by_shape.memory.kv_bytes_per_token, 1088 * 2 * 8);  // bfloat16, 5 + 3 layers
  EXPECT_THAT(DecisionOf(by_shape, "KV cache form"),
              AllOf(HasSubstr("heads (saves"), HasSubstr("1152 bytes and 8704 multiply-adds"),
                    HasSubstr("2176 bytes and 1536 multiply-adds")));
  EXPECT_NE(DecisionOf(by_shape, "all tokens"), "");

  options.attention_backend = AttentionBackend::kUniformPad;
  EXPECT_THAT(DecisionOf(ExplainEngine(options), "KV cache form"),
              HasSubstr("latent (--attention-backend uniform-pad needs it"));
  options.kv_cache_form = KvCacheForm::kHeads;
  EXPECT_THROW(ExplainEngine(options), Error);

  options.attention_backend = AttentionBackend::kRagged;
  options.kv_cache_form = KvCacheForm::kLatent;
  const LoadedEngine by_flag = ExplainEngine(options);
  EXPECT_EQ(by_flag.kv_cache_form, KvCacheForm::kLatent);
  EXPECT_EQ(by_flag.memory.kv_bytes_per_token, 576 * 2 * 8);
  EXPECT_NE(DecisionOf(by_flag, "generated tokens"), "");
}

TEST(ExplainedDraftLength, MemoryOfKeptRowsIsPartOfTheBudget) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  options.kv_cache_memory_bytes = 64 << 20;
  options.speculation.num_speculative_tokens = 3;
  const LoadedEngine fixed = ExplainEngine(options);
  EXPECT_EQ(fixed.memory.kept_row_bytes, 0);
  EXPECT_THAT(DecisionOf(fixed, "draft length"), HasSubstr("always 3 (num_speculative_tokens)"));

  options.speculation.num_speculative_tokens.reset();
  const LoadedEngine adaptive = ExplainEngine(options);
  EXPECT_THAT(DecisionOf(adaptive, "draft length"), HasSubstr("adaptive, 0 to 3"));
  EXPECT_EQ(adaptive.memory.kept_row_bytes, adaptive.memory.kv_tokens * 256 * 4);
  EXPECT_LT(adaptive.memory.kv_tokens, fixed.memory.kv_tokens);
  EXPECT_LE(adaptive.memory.kv_cache_bytes + adaptive.memory.kept_row_bytes, 64 << 20);

  options.speculation.num_speculative_tokens = 0;  // turns speculation off
  EXPECT_EQ(ExplainEngine(options).memory.kept_row_bytes, 0);
  options.speculation.num_speculative_tokens.reset();
  options.speculation.num_speculative_tokens_per_batch_size = {{1, 4, 3}};
  options.speculation.adaptive = true;
  EXPECT_THROW(ExplainEngine(options), Error);
  options.speculation.adaptive = false;
  EXPECT_GT(ExplainEngine(options).memory.kept_row_bytes, 0);
}

TEST(ExplainedWeights, AreOneByteAsStoredAndWithInt8) {
  const int64_t few = GetKernels(SelectIsa()).max_fp8_weights_as_bf16;
  ASSERT_TRUE(few == 0 || few == 512 << 10) << "between a layer's experts and all others";
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine stored = ExplainEngine(options);
  const int64_t expert = 3 * 256 * 128;
  const int64_t experts = 4 * 8 * expert;
  // Keys of W_UK are kept twice, as they are and transposed.
  const int64_t others = 5 * (192 * 256 + 1024 * 192 + 576 * 256 + 1536 * 512 + 256 * 512) +
                         3 * 640 * 256 + 4 * expert;
  const int64_t vocabulary = 2048 * 256;
  const int64_t routers = 4 * 16 * 256;  // eight rows take a panel of 16
  const int64_t fp8 = stored.memory.weights.at(DType::kF8E4M3);
  const int64_t codes = few == 0 ? experts + others : experts;
  EXPECT_GE(fp8, codes);
  EXPECT_LE(fp8, codes * 101 / 100) << "scales are few";
  EXPECT_EQ(stored.memory.weights.at(DType::kBF16),
            2 * (experts + others - codes + 2 * vocabulary + routers));
  EXPECT_THAT(DecisionOf(stored, "quantization"), HasSubstr("none"));

  options.quantization = WeightQuantization::kInt8;
  const LoadedEngine int8 = ExplainEngine(options);
  EXPECT_EQ(int8.memory.weights.count(DType::kF8E4M3), 0);
  EXPECT_EQ(int8.memory.weights.at(DType::kBF16), 2 * (vocabulary + routers)) << "not the head";
  const int64_t quantized = int8.memory.weights.at(DType::kI8);
  EXPECT_GE(quantized, experts + others + vocabulary);
  EXPECT_LE(quantized, (experts + others + vocabulary) * 104 / 100);
  EXPECT_THAT(DecisionOf(int8, "quantization"), HasSubstr("int8 (--quantization"));
}

TEST(ExplainReport, Text) {
  const std::string text = ExplainText("models/tiny", BundledModel());
  EXPECT_THAT(
      text, AllOf(HasSubstr("deepseek_v3"), HasSubstr("5: 1 dense, 4 with experts"),
                  HasSubstr("8 routed in 4 groups"), HasSubstr("YaRN, factor 4"),
                  HasSubstr("10.3 M"), HasSubstr("1234 tokens"), HasSubstr("ChainDrafter, k = 3")));
}

// What the first of several ranks keeps of a group is a part of it: its bytes are told, no bits of
// a weight.
TEST(ExplainReport, BitsOfAWeightAreToldOfOneRank) {
  EngineOptions options;
  options.model = SourceDirectory() / "models/tiny-v3-mtp3";
  const LoadedEngine one = ExplainEngine(options);
  EXPECT_THAT(ExplainText("models/tiny", one), HasSubstr("; in memory bfloat16: 16."));
  options.tensor_parallel_size = 2;
  const LoadedEngine two = ExplainEngine(options);
  const std::string text = ExplainText("models/tiny", two);
  EXPECT_THAT(text, HasSubstr("on the first rank bfloat16, "));
  EXPECT_THAT(text, Not(HasSubstr("; in memory ")));
  const auto groups_of = [](const LoadedEngine& explained) {
    return Json::parse(ExplainJson("models/tiny", explained))["memory"]["weight_groups"];
  };
  EXPECT_TRUE(groups_of(one).at(0).contains("memory_bits"));
  EXPECT_FALSE(groups_of(two).at(0).contains("memory_bits"));
}

TEST(ExplainReport, Json) {
  const Json object = Json::parse(ExplainJson("models/tiny", BundledModel()));
  EXPECT_EQ(object["shapes"]["kv_lora_rank"], 512);
  EXPECT_EQ(object["parameters"]["target"], 10336480);
  EXPECT_EQ(object["memory"]["kv_tokens"], 1234);
  EXPECT_EQ(object["memory"]["kv_groups"], Json::array());
  EXPECT_EQ(object["decisions"][0]["what"], "drafter");
}

// Of linear attention: what a running request takes, and what a checkpoint.
TEST(ExplainReport, JsonOfRunningStates) {
  LoadedEngine explained;
  explained.config = ReadModelConfig(SourceDirectory() / "models/tiny-ling");
  MemoryReport& memory = explained.memory;
  memory.kv_page_bytes = 1 << 20;
  memory.request = {.history = 10, .generating = 5, .prompt = 8};
  const RunningStateSpec spec = {.heads = 32, .head_dim = 128, .conv = 4};
  memory.state = {.spec = spec, .state_pages = 3, .row_pages = 2, .tokens_per_checkpoint = 512};
  const Json report = Json::parse(ExplainJson("models/tiny", explained))["memory"];
  EXPECT_EQ(report["request"], Json::parse(R"({"history_pages": 10, "generating_pages": 5,
      "generating_bytes": 5242880, "prompt_pages": 8, "prompt_bytes": 8388608})"));
  const Json& state = report["running_state"];
  EXPECT_EQ(state["request_bytes"], spec.StateBytes() + spec.RowBytes());
  EXPECT_EQ(state["request_pages"], 5);
  EXPECT_EQ(state["checkpoint_bytes"], spec.StateBytes());
  EXPECT_EQ(state["checkpoint_pages"], 3);
  EXPECT_EQ(state["tokens_per_checkpoint"], 512);
}

}  // namespace
}  // namespace outrider::cli
