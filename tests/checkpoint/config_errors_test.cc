// Every complaint about a config.json: what it says and that one error tells all. One case per
// complaint makes it long.
#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "outrider/base/logging.h"
#include "outrider/checkpoint/model_config.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/checkpoint/published_configs.h"

namespace outrider {
namespace {

using nlohmann::json;
using test_checkpoints::ErrorOf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string ErrorOfText(std::string_view text, std::optional<std::string_view> generation = {}) {
  return ErrorOf([&] { ParseModelConfig(text, generation, "c"); });
}

/// The whole error for `base` with one key set to `value`.
std::string ErrorWith(const char* base, const std::string& key, const json& value) {
  json config = json::parse(base);
  config[key] = value;
  return ErrorOfText(config.dump());
}
std::string ErrorV3(const std::string& key, const json& value) {
  return ErrorWith(test_checkpoints::kDeepSeekV3, key, value);
}
std::string ErrorV2(const std::string& key, const json& value) {
  return ErrorWith(test_checkpoints::kDeepSeekV2, key, value);
}
std::string ErrorYarn(const std::string& key, const json& value) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  config["rope_scaling"][key] = value;
  return ErrorOfText(config.dump());
}
std::string ErrorGeneration(std::string_view generation) {
  return ErrorOfText(test_checkpoints::kDeepSeekV3, generation);
}
/// The error when that problem is the only one.
std::string Only(const std::string& problem) { return "invalid_argument: c: " + problem; }

TEST(ConfigErrorsTest, NotJson) {
  EXPECT_EQ(ErrorOfText(""), Only("not valid JSON at line 1, column 1"));
  EXPECT_EQ(ErrorOfText("{\n \"a\": }"), Only("not valid JSON at line 2, column 7"));
  EXPECT_EQ(ErrorOfText("{\"a\": 1e999}"),
            Only("has a number that no floating-point type can hold"));
  EXPECT_EQ(ErrorOfText("[1]"), Only("is [1], not an object"));
  EXPECT_EQ(ErrorOfText(std::string(10000, '[')), Only("is nested more than 64 levels deep"));
}

TEST(ConfigErrorsTest, UnknownModelsListTheKnownOnes) {
  const std::string known =
      "known are deepseek_v2, deepseek_v3, deepseek_v32, deepseek_v4, kimi_k2, glm4_moe_lite, "
      "glm_moe_dsa, step3p5, kimi_linear, bailing_hybrid, and "
      "models with one of "
      "these as "
      "text_config";
  EXPECT_EQ(ErrorOfText("{}"), Only("\"model_type\" is missing; " + known));
  EXPECT_EQ(ErrorV3("model_type", "llama"), Only("\"model_type\" is \"llama\"; " + known));
  EXPECT_EQ(ErrorV3("model_type", 3), Only("\"model_type\" is 3; " + known));
  EXPECT_EQ(ErrorOfText(R"({"model_type": "x", "text_config": {"model_type": "y"}})"),
            Only("\"model_type\" is \"x\"; " + known));
  EXPECT_EQ(
      ErrorV3("architectures", json::array({"DeepseekV32ForCausalLM"})),
      Only("\"architectures\" is [\"DeepseekV32ForCausalLM\"]: model_type deepseek_v3 is known "
           "with [\"DeepseekV3ForCausalLM\"]"));
  EXPECT_EQ(ErrorV3("architectures", "x"),
            Only("\"architectures\" is \"x\": a list of names is needed"));
}

TEST(ConfigErrorsTest, IndexersOfOtherLayersAreRefused) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  config["model_type"] = "glm_moe_dsa";
  config["architectures"] = {"GlmMoeDsaForCausalLM"};
  config.update({{"index_n_heads", 32}, {"index_head_dim", 128}, {"index_topk", 2048}});
  const auto error = [&](const std::string& key, const json& value) {
    json changed = config;
    changed[key] = value;
    return ErrorOfText(changed.dump());
  };
  EXPECT_THAT(error("indexer_types", {"full", "shared"}), HasSubstr("\"indexer_types\""));
  EXPECT_THAT(error("indexer_types", {"full"}),
              HasSubstr("an element for each of 61 layers is needed"));
  EXPECT_THAT(error("layer_types", json::array()),
              HasSubstr("\"layer_types\" is []: an element for each of 61 layers is needed"));
  EXPECT_THAT(error("index_topk_pattern", "FSSF"), HasSubstr("\"index_topk_pattern\""));
  EXPECT_THAT(error("index_topk_freq", 4), HasSubstr("\"index_topk_freq\" is 4"));
  EXPECT_THAT(error("index_head_dim", 32), HasSubstr("\"index_head_dim\" is 32"));
  EXPECT_THAT(error("q_lora_rank", nullptr), HasSubstr("\"q_lora_rank\""));
  EXPECT_THAT(error("layer_types", json::array({"full_attention"})), HasSubstr("\"layer_types\""));
  json published = config;  // GLM-5.2's
  std::vector<std::string> types(61, "shared");
  for (size_t i = 0; i < types.size(); i += i < 3 ? 1 : 4) types[i] = "full";
  published.update({{"indexer_types", types},
                    {"index_topk_pattern", nullptr},
                    {"index_topk_freq", 4},
                    {"index_skip_topk_offset", 3},
                    {"index_share_for_mtp_iteration", true}});
  EXPECT_THAT(ErrorOfText(published.dump()),
              AllOf(HasSubstr("\"indexer_types\""), HasSubstr("\"index_topk_freq\" is 4")));
  config.erase("index_topk");
  EXPECT_THAT(ErrorOfText(config.dump()), HasSubstr("\"index_topk\" is missing"));
}

TEST(ConfigErrorsTest, EachRequiredKeyIsMissedByName) {
  for (const char* base : {test_checkpoints::kDeepSeekV2, test_checkpoints::kDeepSeekV3,
                           test_checkpoints::kGlm47Flash}) {
    for (const char* key : {"vocab_size",
                            "hidden_size",
                            "num_hidden_layers",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "num_attention_heads",
                            "q_lora_rank",
                            "kv_lora_rank",
                            "qk_nope_head_dim",
                            "qk_rope_head_dim",
                            "v_head_dim",
                            "rope_theta",
                            "hidden_act",
                            "intermediate_size",
                            "n_routed_experts",
                            "n_shared_experts",
                            "moe_intermediate_size",
                            "num_experts_per_tok",
                            "n_group",
                            "topk_group",
                            "first_k_dense_replace",
                            "norm_topk_prob",
                            "routed_scaling_factor"}) {
      json config = json::parse(base);
      ASSERT_EQ(config.erase(key), 1) << key;
      EXPECT_THAT(
          ErrorOfText(config.dump()),
          AllOf(StartsWith(Only(fmt::format("\"{}\" is missing: ", key))), Not(HasSubstr("; "))));
    }
  }
  json config = json::parse(test_checkpoints::kDeepSeekV2);
  config.erase("topk_method");
  EXPECT_EQ(ErrorOfText(config.dump()), Only("\"topk_method\" is missing: deepseek_v2 uses "
                                             "\"greedy\" or \"group_limited_greedy\""));
  config = json::parse(test_checkpoints::kDeepSeekV3);
  config.erase("torch_dtype");
  EXPECT_EQ(ErrorOfText(config.dump()),
            Only("\"torch_dtype\" is missing: \"bfloat16\", \"float16\" or \"float32\" is needed"));
}

TEST(ConfigErrorsTest, AllProblemsInOneLine) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  config["hidden_size"] = -1;
  config["vocab_size"] = "many";
  config["rope_scaling"]["factor"] = 0;
  const std::string message = ErrorOfText(config.dump(), R"({"top_p": 2})");
  EXPECT_EQ(message,
            Only("\"vocab_size\" is \"many\": an integer from 1 to 16777216 is needed; "
                 "\"hidden_size\" is -1: an integer from 1 to 16777216 is needed; "
                 "\"factor\" of rope_scaling is 0: a number from 1 to 1000000 is needed; "
                 "\"top_p\" of generation_config.json is 2: a number from 0 to 1 is needed"));
}

TEST(ConfigErrorsTest, WrongTypesAndAbsurdNumbers) {
  const std::string size = ": an integer from 1 to 16777216 is needed";
  EXPECT_EQ(ErrorV3("hidden_size", 0), Only("\"hidden_size\" is 0" + size));
  EXPECT_EQ(ErrorV3("hidden_size", 7168.0), Only("\"hidden_size\" is 7168.0" + size));
  EXPECT_EQ(ErrorV3("hidden_size", true), Only("\"hidden_size\" is true" + size));
  EXPECT_EQ(ErrorV3("hidden_size", nullptr), Only("\"hidden_size\" is null" + size));
  EXPECT_EQ(ErrorV3("hidden_size", json::object()), Only("\"hidden_size\" is an object" + size));
  EXPECT_EQ(ErrorV3("hidden_size", UINT64_MAX),
            Only("\"hidden_size\" is 18446744073709551615" + size));
  EXPECT_EQ(ErrorV3("hidden_size", std::string(100, 'a')),
            Only("\"hidden_size\" is \"" + std::string(59, 'a') + "..." + size));
  EXPECT_EQ(ErrorV3("num_hidden_layers", 5000),
            Only("\"num_hidden_layers\" is 5000: an integer from 1 to 4096 is needed"));
  EXPECT_EQ(ErrorV3("rms_norm_eps", 0),
            Only("\"rms_norm_eps\" is 0: a number from 1e-12 to 0.1 is needed"));
  EXPECT_EQ(ErrorV3("rms_norm_eps", "tiny"),
            Only("\"rms_norm_eps\" is \"tiny\": a number from 1e-12 to 0.1 is needed"));
  EXPECT_EQ(ErrorV3("tie_word_embeddings", 1),
            Only("\"tie_word_embeddings\" is 1: true or false is needed"));
  EXPECT_EQ(ErrorV3("hidden_act", 1), Only("\"hidden_act\" is 1: \"silu\" is supported"));
}

TEST(ConfigErrorsTest, SizesWhoseProductIsAbsurd) {
  EXPECT_THAT(ErrorV3("hidden_size", 1 << 24),
              AllOf(StartsWith(Only("the sizes multiply to about 1.")),
                    HasSubstr("parameters, at most 1e+14 make sense; check \"hidden_size\"")));
}

TEST(ConfigErrorsTest, Attention) {
  EXPECT_EQ(ErrorV3("qk_rope_head_dim", 63), Only("\"qk_rope_head_dim\" is 63: an even number is "
                                                  "needed, as pairs are rotated"));
  EXPECT_EQ(ErrorV3("num_key_value_heads", 1),
            Only("\"num_key_value_heads\" is 1: latent attention has as many as "
                 "\"num_attention_heads\", 128"));
  EXPECT_EQ(ErrorV3("num_attention_heads", 0),
            Only("\"num_attention_heads\" is 0: an integer from 1 to 65536 is needed"));
  EXPECT_EQ(ErrorV3("q_lora_rank", 0),
            Only("\"q_lora_rank\" is 0: an integer from 1 to 16777216 is needed"));
  EXPECT_EQ(ErrorV2("rope_interleave", false),
            Only("\"rope_interleave\" is false: deepseek_v2 rotates interleaved pairs"));
  EXPECT_EQ(ErrorV3("partial_rotary_factor", 0.5),
            Only("\"partial_rotary_factor\" is 0.5: latent attention rotates all of "
                 "qk_rope_head_dim"));
}

TEST(ConfigErrorsTest, RopeScaling) {
  EXPECT_EQ(ErrorV3("rope_scaling", 4), Only("\"rope_scaling\" is 4: an object or null is needed"));
  EXPECT_EQ(ErrorV3("rope_theta", 0),
            Only("\"rope_theta\" is 0: a number from 1 to 1000000000000 is needed"));
  EXPECT_EQ(ErrorYarn("type", "linear"),
            Only("\"type\" of rope_scaling is \"linear\": \"yarn\" and "
                 "\"default\" are supported"));
  EXPECT_EQ(ErrorYarn("rope_type", "llama3"), Only("\"rope_type\" of rope_scaling is \"llama3\": "
                                                   "\"yarn\" and \"default\" are supported"));
  EXPECT_EQ(ErrorYarn("type", nullptr),
            Only("\"type\" of rope_scaling is null: \"yarn\" and \"default\" are supported"));
  EXPECT_EQ(
      ErrorYarn("original_max_position_embeddings", nullptr),
      Only("\"original_max_position_embeddings\" of rope_scaling is null: an integer from 1 to "
           "2147483647 is needed"));
  EXPECT_EQ(ErrorYarn("beta_fast", 0.5), Only("\"beta_fast\" of rope_scaling is 0.5: it may not be "
                                              "below \"beta_slow\", 1"));
  EXPECT_EQ(ErrorYarn("mscale_all_dim", 0.0), "nothing was thrown");
  EXPECT_EQ(ErrorYarn("mscale", 0.0), Only("\"mscale\" of rope_scaling is 0.0: it needs "
                                           "\"mscale_all_dim\" beside it, both above 0"));
  json lone = json::parse(test_checkpoints::kDeepSeekV3);
  lone["rope_scaling"].erase("mscale");
  EXPECT_EQ(ErrorOfText(lone.dump()), Only("\"mscale_all_dim\" of rope_scaling is 1.0: it needs "
                                           "\"mscale\" beside it, both above 0"));
  lone["rope_scaling"].erase("mscale_all_dim");
  EXPECT_EQ(ErrorOfText(lone.dump()), "nothing was thrown");
  EXPECT_EQ(ErrorYarn("truncate", "no"),
            Only("\"truncate\" of rope_scaling is \"no\": true or false is needed"));
  EXPECT_EQ(ErrorYarn("attention_factor", 1.0),
            Only("\"attention_factor\" of rope_scaling is 1.0: use \"mscale\" and "
                 "\"mscale_all_dim\""));
}

TEST(ConfigErrorsTest, UnknownKeysOfRopeScaling) {
  EXPECT_EQ(ErrorYarn("llama_4_scaling_beta", 0.1),
            Only("\"llama_4_scaling_beta\" of rope_scaling is 0.1: it is no key of YaRN; leave it "
                 "out"));
  EXPECT_EQ(ErrorYarn("short_factor", nullptr), "nothing was thrown");
}

// The tensors of such networks can have the names and shapes of ours.
TEST(ConfigErrorsTest, KeysOfOtherNetworks) {
  const auto refused = [](const std::string& key, const json& value, const std::string& neutral) {
    EXPECT_EQ(ErrorV3(key, value),
              Only(fmt::format("\"{}\" is {}: networks with it are not supported; {} means none",
                               key, value.dump(), neutral)));
  };
  refused("index_topk", 2048, "null");
  refused("use_qk_norm", true, "null or false");
  refused("attention_bias", true, "null or false");
  refused("final_logit_softcapping", 30.0, "null");
  refused("residual_multiplier", 0.22, "null or 1");
  refused("swiglu_limit", 10.0, "null");
  refused("use_sliding_window", true, "null or false");
  EXPECT_EQ(ErrorV3("compression_config", {{"format", "pack-quantized"}}),
            Only("\"compression_config\" is an object: networks with it are not supported; null or "
                 "{} means none"));
  EXPECT_EQ(ErrorV3("sliding_window", 4096),
            Only("\"sliding_window\" is 4096: windows are not supported; null means none"));
  EXPECT_EQ(ErrorV3("layer_types", {"full_attention", "sliding_attention"}),
            Only("\"layer_types\" is [\"full_attention\",\"sliding_attention\"]: only layers of "
                 "\"full_attention\" are supported"));
}

TEST(ConfigErrorsTest, KeysOfOtherNetworksWhoseValueChangesNothing) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  config["index_topk"] = nullptr;
  config["use_qk_norm"] = false;
  config["final_logit_softcapping"] = nullptr;
  config["residual_multiplier"] = 1.0;
  config["is_causal"] = true;
  config["sliding_window"] = 4096;
  config["use_sliding_window"] = false;
  config["layer_types"] = std::vector<std::string>(61, "full_attention");
  config["compression_config"] = json::object();
  EXPECT_EQ(ErrorOfText(config.dump()), "nothing was thrown");
  config.erase("use_sliding_window");
  config["sliding_window"] = config["max_position_embeddings"];
  EXPECT_EQ(ErrorOfText(config.dump()), "nothing was thrown");
}

/// What is logged while the config is read.
std::string LogOf(const json& config, spdlog::level::level_enum level) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log));
  logger->set_level(level);
  logger->set_pattern("%l %v");
  spdlog::set_default_logger(logger);
  EXPECT_EQ(ErrorOfText(config.dump()), "nothing was thrown");
  spdlog::set_default_logger(before);
  return log.str();
}

TEST(ConfigErrorsTest, KeysThatMeanNothingAreLogged) {
  json config = json::parse(test_checkpoints::kGlm47Flash);
  config["zest"] = 3;
  EXPECT_EQ(LogOf(config, spdlog::level::debug),
            "debug c: not read: attention_dropout, pad_token_id, zest\n");
}

TEST(ConfigErrorsTest, MisspeltOptionalKeysAreWarnedOf) {
  for (const auto& [wrong, right] : {std::pair("rope_scalling", "rope_scaling"),
                                     {"num_nextn_predict_layer", "num_nextn_predict_layers"},
                                     {"tie_word_embedings", "tie_word_embeddings"},
                                     {"eos_tokne_id", "eos_token_id"},
                                     {"quantisation_config", "quantization_config"},
                                     {"slidding_window", "sliding_window"}}) {
    json config = json::parse(test_checkpoints::kDeepSeekV3);
    config.erase(right);
    config[wrong] = nullptr;
    EXPECT_EQ(
        LogOf(config, spdlog::level::warn),
        fmt::format("warning c: the key \"{}\" is not read; is \"{}\" meant?\n", wrong, right));
  }
  for (const std::string_view published :
       {test_checkpoints::kDeepSeekV2Lite, test_checkpoints::kDeepSeekV3,
        test_checkpoints::kGlm47Flash, test_checkpoints::kKimiK25}) {
    EXPECT_EQ(LogOf(json::parse(published), spdlog::level::warn), "");
  }
}

TEST(ConfigErrorsTest, Experts) {
  EXPECT_EQ(ErrorV3("num_experts_per_tok", 257),
            Only("\"num_experts_per_tok\" is 257: an integer from 1 to 256 is needed"));
  EXPECT_EQ(ErrorV3("n_group", 7),
            Only("\"n_group\" is 7: it must divide \"n_routed_experts\", 256"));
  EXPECT_EQ(ErrorV3("n_group", 256), Only("\"n_group\" is 256: a group needs two experts, as its "
                                          "best two rank it"));
  EXPECT_EQ(ErrorV3("topk_group", 9),
            Only("\"topk_group\" is 9: an integer from 1 to 8 is needed"));
  EXPECT_EQ(ErrorV3("num_experts_per_tok", 129),
            Only("\"num_experts_per_tok\" is 129: the chosen groups hold 128 experts"));
  EXPECT_EQ(ErrorV3("first_k_dense_replace", 62),
            Only("\"first_k_dense_replace\" is 62: an integer from 0 to 61 is needed"));
  EXPECT_EQ(ErrorV3("moe_layer_freq", 0),
            Only("\"moe_layer_freq\" is 0: an integer from 1 to 4096 is needed"));
  EXPECT_EQ(ErrorV3("scoring_func", "softmax"),
            Only("\"scoring_func\" is \"softmax\": deepseek_v3 uses \"sigmoid\""));
  EXPECT_EQ(ErrorV2("scoring_func", "sigmoid"),
            Only("\"scoring_func\" is \"sigmoid\": deepseek_v2 uses \"softmax\""));
  EXPECT_EQ(ErrorV3("topk_method", "greedy"),
            Only("\"topk_method\" is \"greedy\": deepseek_v3 uses \"noaux_tc\""));
  EXPECT_EQ(ErrorV2("topk_method", "noaux_tc"),
            Only("\"topk_method\" is \"noaux_tc\": deepseek_v2 uses \"greedy\" or "
                 "\"group_limited_greedy\""));
  EXPECT_EQ(ErrorV2("norm_topk_prob", true),
            Only("\"norm_topk_prob\" is true: deepseek_v2 does not renormalise expert weights"));
  EXPECT_EQ(ErrorV3("mlp_bias", true), Only("\"mlp_bias\" is true: MLPs have no biases"));
  EXPECT_EQ(ErrorV3("hidden_act", "gelu"),
            Only("\"hidden_act\" is \"gelu\": \"silu\" is supported"));
}

TEST(ConfigErrorsTest, MlpLayerTypes) {
  json config = json::parse(test_checkpoints::kGlm47Flash);
  config.erase("first_k_dense_replace");
  const std::string requirement = ": 47 entries are needed, \"dense\" first, then \"sparse\"";
  config["mlp_layer_types"] = {"dense", "sparse"};
  EXPECT_EQ(ErrorOfText(config.dump()),
            Only("\"mlp_layer_types\" is [\"dense\",\"sparse\"]" + requirement));
  config["mlp_layer_types"] = std::vector<std::string>(47, "sparse");
  config["mlp_layer_types"][5] = "dense";
  EXPECT_EQ(ErrorOfText(config.dump()), Only("\"mlp_layer_types\" is a long list" + requirement));
}

TEST(ConfigErrorsTest, TypesAndQuantization) {
  EXPECT_EQ(ErrorV3("torch_dtype", "int8"), Only("\"torch_dtype\" is \"int8\": \"bfloat16\", "
                                                 "\"float16\" or \"float32\" is needed"));
  EXPECT_EQ(ErrorV3("quantization_config", 8),
            Only("\"quantization_config\" is 8: an object or null is needed"));
  EXPECT_EQ(ErrorV3("quantization_config", json::object()),
            Only("\"quant_method\" of quantization_config is missing: a string is needed"));
  EXPECT_EQ(ErrorV3("quantization_config", {{"quant_method", "fp8"}}),
            Only("\"weight_block_size\" of quantization_config is missing: rows and columns of a "
                 "block are needed: [128, 128]"));
  for (const json& block :
       {json::parse("[128]"), json::parse("[0,128]"), json::parse("[128,-1]")}) {
    EXPECT_EQ(
        ErrorV3("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", block}}),
        Only("\"weight_block_size\" of quantization_config is " + block.dump() +
             ": rows and columns of a block are needed: [128, 128]"));
  }
  EXPECT_EQ(ErrorV3("quantization_config",
                    {{"quant_method", "fp8"}, {"fmt", "e5m2"}, {"weight_block_size", {128, 128}}}),
            Only("\"fmt\" of quantization_config is \"e5m2\": \"e4m3\" is supported"));
}

TEST(ConfigErrorsTest, CompressedTensors) {
  const auto error = [](const std::string& key, const json& value) {
    json config = json::parse(test_checkpoints::kKimiK25);
    json& weights =
        config["text_config"]["quantization_config"]["config_groups"]["group_0"]["weights"];
    if (value.is_discarded()) {
      weights.erase(key);
    } else {
      weights[key] = value;
    }
    return ErrorOfText(config.dump());
  };
  const std::string where = " of config_groups.group_0.weights is ";
  EXPECT_EQ(error("symmetric", false),
            Only("\"symmetric\"" + where + "false: weights with zero points are not supported"));
  EXPECT_EQ(error("actorder", "group"),
            Only("\"actorder\"" + where +
                 "\"group\": columns in the order of activations are not "
                 "supported"));
  EXPECT_EQ(error("actorder", "static"), "nothing was thrown");
  EXPECT_EQ(error("group_size", 128), "nothing was thrown");
  EXPECT_EQ(error("group_size", 48),
            Only("\"group_size\"" + where + "48: a multiple of 32 is needed"));
  EXPECT_THAT(error("group_size", 0), HasSubstr("\"group_size\"" + where + "0: "));
  for (const json& bits : {json(8), json(3)}) {
    EXPECT_EQ(error("num_bits", bits),
              Only("\"num_bits\"" + where + bits.dump() +
                   ": supported are 4 of \"int\" by \"group\", 4 of \"float\" by \"group\" or "
                   "\"tensor_group\", and 8 of \"float\" by \"tensor\", \"channel\" or "
                   "\"block\""));
  }
  EXPECT_EQ(error("strategy", "token"), Only("\"strategy\"" + where +
                                             "\"token\": \"tensor\", \"channel\", \"block\", "
                                             "\"group\" or \"tensor_group\""));
  EXPECT_THAT(error("type", json::value_t::discarded), HasSubstr("\"type\""));

  const auto error_around = [](const std::string& key, const json& value) {
    json config = json::parse(test_checkpoints::kKimiK25);
    config["text_config"]["quantization_config"][key] = value;
    return ErrorOfText(config.dump());
  };
  const std::string needed = ": an object with a group or more is needed";
  EXPECT_EQ(error_around("config_groups", json::object()),
            Only("\"config_groups\" of quantization_config is an object" + needed));
  EXPECT_EQ(error_around("config_groups", json::array({1})),
            Only("\"config_groups\" of quantization_config is [1]" + needed));
  EXPECT_THAT(error_around("config_groups", {{"a\nb", {{"targets", {"Linear"}}}}}),
              AllOf(HasSubstr("\"a\\nb\" needs an object \"weights\""), Not(HasSubstr("\n"))));
  EXPECT_EQ(error_around("ignore", {1}),
            Only("\"ignore\" of quantization_config is [1]: a list of names is needed"));
}

TEST(ConfigErrorsTest, ModelOpt) {
  const auto error = [](const json& algorithm) {
    return ErrorV3("quantization_config", {{"quant_method", "modelopt"},
                                           {"quant_algo", algorithm},
                                           {"exclude_modules", {"lm_head"}}});
  };
  EXPECT_EQ(error("NVFP4"), "nothing was thrown");
  EXPECT_EQ(error("FP8"), "nothing was thrown");
  EXPECT_EQ(error("W4A8_AWQ"),
            Only("\"quant_algo\" of quantization_config is \"W4A8_AWQ\": \"NVFP4\" and \"FP8\" are "
                 "supported of modelopt"));
}

TEST(ConfigErrorsTest, Tokens) {
  const std::string ids = ": token ids from 0 to 129279 are needed";
  EXPECT_EQ(ErrorV3("eos_token_id", -1), Only("\"eos_token_id\" is -1" + ids));
  EXPECT_EQ(ErrorV3("eos_token_id", 129280), Only("\"eos_token_id\" is 129280" + ids));
  EXPECT_EQ(ErrorV3("eos_token_id", json::array({1, "x"})),
            Only("\"eos_token_id\" is [1,\"x\"]" + ids));
  EXPECT_EQ(ErrorV3("bos_token_id", 129280),
            Only("\"bos_token_id\" is 129280: an integer from 0 to 129279 is needed"));
}

TEST(ConfigErrorsTest, GenerationConfig) {
  EXPECT_EQ(ErrorGeneration("{"),
            Only("generation_config.json beside it: not valid JSON at line 1, column 2"));
  EXPECT_EQ(ErrorGeneration("3"), Only("generation_config.json beside it: is 3, not an object"));
  EXPECT_EQ(ErrorGeneration(R"({"temperature": -1})"),
            Only("\"temperature\" of generation_config.json is -1: a number from 0 to 1000 is "
                 "needed"));
  EXPECT_EQ(ErrorGeneration(R"({"top_k": 1.5})"),
            Only("\"top_k\" of generation_config.json is 1.5: an integer from -1 to 2147483647 is "
                 "needed"));
  EXPECT_THAT(
      ErrorGeneration(R"({"eos_token_id": "</s>"})"),
      StartsWith(Only("\"eos_token_id\" of generation_config.json is \"</s>\": token ids")));
}

TEST(ConfigErrorsTest, KeysOfATextConfigAreNamedSo) {
  json config = json::parse(test_checkpoints::kKimiK25);
  config["text_config"]["v_head_dim"] = 0;
  EXPECT_EQ(ErrorOfText(config.dump()),
            Only("\"v_head_dim\" of text_config is 0: an integer from 1 to 65536 is needed"));
}

TEST(ConfigErrorsTest, MessagesAreOneLine) {
  const std::string message = ErrorV3("torch_dtype", "a\nb\x01");
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_THAT(message, HasSubstr(R"("a\nb\u0001")"));
}

}  // namespace
}  // namespace outrider
