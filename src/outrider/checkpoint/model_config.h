// What a checkpoint's config.json and generation_config.json say about its network, checked: every
// field of a ModelConfig is present, in range and consistent with the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/dtype.h"

namespace outrider {

/// Networks that Outrider runs. DeepSeek-R1, Kimi-K2 and Kimi-K2.5's text model are kDeepSeekV3.
enum class ModelFamily { kDeepSeekV2, kDeepSeekV3, kGlm4MoeLite };

/// How router logits become scores.
enum class RouterScoring { kSoftmax, kSigmoid };

/// How experts are chosen from scores.
enum class RouterMethod {
  kGreedy,              // the best num_experts_per_tok of all experts
  kGroupLimitedGreedy,  // groups ranked by their best score (DeepSeek-V2)
  kNoAuxTc,             // scores plus e_score_correction_bias choose; groups by their best two (V3)
};

/// YaRN context extension (Peng et al., "YaRN", 2023) with DeepSeek's two magnitude exponents.
struct YarnScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // the ramp begins and ends at whole dimensions
  double mscale = 1;
  double mscale_all_dim = 0;
};

/// How linear weights are stored. Which tensors really are FP8 is read from the tensors themselves.
struct Quantization {
  std::string method;      // "" (none), "fp8", or a method that OpenCheckpoint refuses by name
  int64_t block_rows = 0;  // method "fp8": rows and columns that share one weight_scale_inv
  int64_t block_cols = 0;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kDeepSeekV3;
  std::string model_type;     // as written, e.g. "deepseek_v3", "kimi_k2"
  std::string architecture;   // architectures[0], "" if the config names none
  std::string tensor_prefix;  // what precedes "model." and "lm_head.": "" or "language_model."

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // MTP modules as declared; see CountMtpLayers
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  double latent_norm_eps = 1e-6;  // q_a_layernorm and kv_a_layernorm: transformers' class default

  // Attention. A query head is [nope, rope]; the cache holds [latent, rotated key] per token.
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0: queries come from one q_proj, without q_a and q_b
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool attention_bias = false;   // biases on q_a_proj, kv_a_proj_with_mqa and o_proj
  bool rope_interleaved = true;  // rotated pairs are (2i, 2i+1); else (i, i + rope/2)
  double rope_theta = 10000;
  std::optional<YarnScaling> yarn;

  // Feed-forward.
  int64_t intermediate_size = 0;      // of dense layers
  int64_t n_routed_experts = 0;       // 0: every layer is dense, and the fields below mean nothing
  int64_t n_shared_experts = 0;       // one MLP of width n_shared_experts * moe_intermediate_size
  int64_t moe_intermediate_size = 0;  // of one routed expert
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  int64_t first_k_dense_replace = 0;  // layers before this one are dense
  int64_t moe_layer_freq = 1;         // of the others, those whose index it divides are MoE
  RouterScoring router_scoring = RouterScoring::kSigmoid;
  RouterMethod router_method = RouterMethod::kNoAuxTc;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;

  // MTP modules. DeepSeek's paper and checkpoints do not zero the embedding of position 0.
  bool mtp_zero_first_embedding = false;

  DType dtype = DType::kBF16;  // dtype or torch_dtype: kBF16, kF16 or kF32
  Quantization quantization;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // generation_config.json's, else config.json's; may be empty
  std::optional<double> default_temperature;  // of generation_config.json, each if it is there
  std::optional<double> default_top_p;
  std::optional<int64_t> default_top_k;

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }

  /// True when layer `layer` of the trunk has routed experts. MTP modules (layer >=
  /// num_hidden_layers) have them whenever the model has any.
  bool IsMoeLayer(int64_t layer) const;

  /// (P + R)^-1/2 · m(factor, mscale_all_dim)², m(s, a) = 0.1·a·ln s + 1; without YaRN, m = 1.
  double SoftmaxScale() const;

  /// What cos and sin are multiplied by: m(factor, mscale) / m(factor, mscale_all_dim); without
  /// YaRN, 1.
  double RopeMagnitude() const;
};

/// "deepseek_v2", "deepseek_v3", "glm4_moe_lite".
std::string_view ModelFamilyName(ModelFamily family);

/// Parses the text of a config.json, and of the generation_config.json beside it if there is one.
/// `where` opens error messages (the path of config.json). Throws Error{kInvalidArgument} with one
/// line that lists every missing, ill-typed, absurd or contradictory key, its value and what would
/// be right; an unknown model_type lists the known ones.
ModelConfig ParseModelConfig(std::string_view config_json,
                             std::optional<std::string_view> generation_config_json,
                             std::string_view where);

/// ParseModelConfig of the two files in `directory`. Throws Error{kNotFound} when the directory or
/// its config.json does not exist.
ModelConfig ReadModelConfig(const std::filesystem::path& directory);

}  // namespace outrider
