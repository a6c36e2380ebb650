// A directory with the config.json of a small DeepSeek-V3.2 or GLM-5 with an MTP module: for dummy
// weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "tests/networks/model_directory.h"
#include "tests/source_directory.h"

namespace outrider {

struct SmallSparseSizes {
  const char* golden = "tiny-v32";  // whose config it is
  int32_t heads = 2;
  int32_t top_k = 12;       // tokens that a row reads
  int32_t index_heads = 0;  // 0: those of the config; else all sizes are such as a GPU takes
  int32_t gpu_width = 64;   // of the MLP then; experts have half
};
/// Sizes that the GPU's kernels take and `ranks` ranks can share: lists shorter than a split, and
/// of two splits.
constexpr SmallSparseSizes GpuV32Sizes(int32_t ranks) {
  return {.heads = std::max(4, ranks), .index_heads = 8, .gpu_width = std::max(64, 16 * ranks)};
}
constexpr SmallSparseSizes GpuGlm5Sizes(int32_t ranks) {
  return {.golden = "tiny-glm-dsa",
          .heads = 3 * ranks,
          .top_k = 300,
          .index_heads = 32,
          .gpu_width = std::max(64, 16 * ranks)};
}
inline constexpr SmallSparseSizes kGpuV32Sizes = GpuV32Sizes(1);
inline constexpr SmallSparseSizes kGpuGlm5Sizes = GpuGlm5Sizes(1);

class SmallSparseModel : public ModelDirectory {
 public:
  explicit SmallSparseModel(int32_t vocab_size, const SmallSparseSizes& sizes = {}) {
    nlohmann::json config =
        ReadJson(SourceDirectory() / "tests/golden" / sizes.golden / "config.json");
    config["vocab_size"] = vocab_size;
    config["num_nextn_predict_layers"] = 1;
    config["index_topk"] = sizes.top_k;
    config["num_attention_heads"] = sizes.heads;
    config["num_key_value_heads"] = sizes.heads;
    config["index_head_dim"] = 32;  // a power of two, which keys in 8 bits need
    if (sizes.index_heads > 0) {
      config["index_n_heads"] = sizes.index_heads;
      config["index_head_dim"] = 128;
      config["hidden_size"] = 64;
      config["intermediate_size"] = sizes.gpu_width;
      config["moe_intermediate_size"] = sizes.gpu_width / 2;
      config["n_routed_experts"] = 8;
      config["q_lora_rank"] = 64;
      config["kv_lora_rank"] = 512;
      config["qk_nope_head_dim"] = 64;
      config["qk_rope_head_dim"] = 64;
      config["v_head_dim"] = 64;
    }
    WriteConfig(config);
  }
};

}  // namespace outrider
