// A directory with the config.json of a DeepSeek-V3 with three MTP modules, as small as the format
// allows: for dummy weights, where speed matters and sense does not.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

#include "tests/networks/model_directory.h"
#include "tests/source_directory.h"

namespace outrider {

class SmallModel : public ModelDirectory {
 public:
  SmallModel(int32_t layers, int32_t vocab_size, int32_t heads = 2) {
    nlohmann::json config = ReadJson(SourceDirectory() / "models/tiny-v3-mtp3/config.json");
    config.erase("quantization_config");
    for (const auto& [key, value] : {std::pair{"num_hidden_layers", layers},
                                     {"vocab_size", vocab_size},
                                     {"hidden_size", 32},
                                     {"intermediate_size", 32},
                                     {"moe_intermediate_size", 16},
                                     {"num_attention_heads", heads},
                                     {"num_key_value_heads", heads},
                                     {"kv_lora_rank", 16},
                                     {"q_lora_rank", 16},
                                     {"qk_rope_head_dim", 16},
                                     {"v_head_dim", 16},
                                     {"qk_nope_head_dim", 16}}) {
      config[key] = value;
    }
    WriteConfig(config);
  }
};

}  // namespace outrider
