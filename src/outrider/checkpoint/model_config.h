// What a checkpoint's config.json and generation_config.json say about its network, checked: a part
// that all families have, and a LayerSpec for every layer. Every field is present, in range and
// consistent with the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/eagle3_spec.h"
#include "outrider/checkpoint/layer_spec.h"
#include "outrider/checkpoint/quantization.h"

namespace outrider {

/// Networks that Outrider runs. DeepSeek-R1, Kimi-K2 and Kimi-K2.5's text model are kDeepSeekV3.
/// kEagle3 is a drafter for one of them.
enum class ModelFamily {
  kDeepSeekV2,
  kDeepSeekV3,
  kDeepSeekV4,
  kGlm4MoeLite,
  kStep3p5,
  kKimiLinear,
  kBailingHybrid,  // Ling-3.0
  kEagle3,
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kDeepSeekV3;
  std::string model_type;     // as written, e.g. "deepseek_v3", "kimi_k2"
  std::string architecture;   // architectures[0], "" if the config names none
  std::string tensor_prefix;  // what precedes "model." and "lm_head.": "" or "language_model."

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_nextn_predict_layers = 0;  // MTP modules as declared; see CountMtpLayers
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;

  std::vector<LayerSpec> layers;  // of the target
  LayerSpec mtp_layer;            // of every MTP module, and of every stage of a DSpark drafter

  std::optional<DSparkSpec> dspark;  // in the place of MTP modules
  std::optional<Eagle3Spec> eagle3;  // of kEagle3, which has one layer

  // MTP modules. DeepSeek's paper and checkpoints do not zero the embedding of position 0.
  bool mtp_zero_first_embedding = false;

  DType dtype = DType::kBF16;  // dtype or torch_dtype: kBF16, kF16 or kF32
  Quantization quantization;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // generation_config.json's, else config.json's; may be empty
  std::optional<double> default_temperature;  // of generation_config.json, each if it is there
  std::optional<double> default_top_p;
  std::optional<int64_t> default_top_k;
  std::optional<double> default_min_p;
  std::optional<double> default_repetition_penalty;

  int64_t num_hidden_layers() const { return static_cast<int64_t>(layers.size()); }

  /// The first layer of the target that keeps entries in the cache: of one with linear attention
  /// among others. There is one.
  const LayerSpec& first_cached_layer() const;

  /// Layer `index` of the target or, from num_hidden_layers() on, of an MTP module or a stage.
  const LayerSpec& layer(int64_t index) const {
    return index < num_hidden_layers() ? layers[static_cast<size_t>(index)] : mtp_layer;
  }
};

/// "deepseek_v2", "deepseek_v3", "deepseek_v4", "glm4_moe_lite", "step3p5", "kimi_linear",
/// "bailing_hybrid", "eagle3".
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
