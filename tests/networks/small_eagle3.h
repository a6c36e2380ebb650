// A directory with the config.json of an EAGLE-3 drafter for another directory's model: for dummy
// weights, where speed matters and sense does not.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/networks/model_directory.h"

namespace outrider {

/// What all drafters say, that read the outputs of the target's first and last layers.
inline nlohmann::json Eagle3Config(const std::filesystem::path& target, int32_t width) {
  nlohmann::json model = ReadJson(target / "config.json");
  if (model.contains("text_config")) model = nlohmann::json(model["text_config"]);
  nlohmann::json config = {
      {"intermediate_size", width}, {"num_hidden_layers", 1},
      {"hidden_act", "silu"},       {"rope_theta", 10000},
      {"rms_norm_eps", 1e-5},       {"draft_vocab_size", model["vocab_size"].get<int>() / 2},
      {"torch_dtype", "bfloat16"}};
  // The layers that streams leave, as the list begins with 1.
  const int last = model["num_hidden_layers"].get<int>() - 1;
  config["eagle_aux_hidden_state_layer_ids"] =
      last > 1 ? nlohmann::json{1, last} : nlohmann::json{1};
  for (const char* key : {"vocab_size", "hidden_size", "max_position_embeddings"}) {
    config[key] = model[key];
  }
  return config;
}

/// With Llama's attention.
class SmallLlamaEagle3 : public ModelDirectory {
 public:
  explicit SmallLlamaEagle3(const std::filesystem::path& target, int32_t heads = 4,
                            int32_t kv_heads = 2, int32_t head_dim = 16, int32_t width = 32) {
    nlohmann::json config = Eagle3Config(target, width);
    config["architectures"] = {"LlamaForCausalLMEagle3"};
    config["model_type"] = "llama";
    config["num_attention_heads"] = heads;
    config["num_key_value_heads"] = kv_heads;
    config["head_dim"] = head_dim;
    WriteConfig(config);
  }
};

/// With latent attention.
class SmallEagle3 : public ModelDirectory {
 public:
  /// version31: with the norms of version 3.1, and with attention of another shape than the
  /// target's, of `heads` heads. width: of its MLP.
  explicit SmallEagle3(const std::filesystem::path& target, bool version31 = false,
                       int32_t heads = 2, int32_t width = 32) {
    const nlohmann::json model = ReadJson(target / "config.json");
    nlohmann::json config = Eagle3Config(target, width);
    config["architectures"] = {"Eagle3DeepseekV2ForCausalLM"};
    config["model_type"] = "deepseek_v3";
    config["q_lora_rank"] = 24;
    const nlohmann::json other = {{"num_attention_heads", heads},
                                  {"kv_lora_rank", 24},
                                  {"qk_nope_head_dim", 16},
                                  {"qk_rope_head_dim", 8},
                                  {"v_head_dim", 16}};
    const bool like_target = !version31 && model.contains("kv_lora_rank");
    for (const auto& [key, value] : other.items()) config[key] = like_target ? model[key] : value;
    if (version31) {
      for (const char* key : {"fc_norm", "norm_output", "norm_before_residual"}) config[key] = true;
    }
    WriteConfig(config);
  }
};

}  // namespace outrider
