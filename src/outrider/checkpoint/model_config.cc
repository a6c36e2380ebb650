#include "outrider/checkpoint/model_config.h"

#include <system_error>

#include "outrider/base/error.h"
#include "outrider/base/file.h"

namespace outrider {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;

}  // namespace

std::string_view ModelFamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kDeepSeekV2:
      return "deepseek_v2";
    case ModelFamily::kDeepSeekV3:
      return "deepseek_v3";
    case ModelFamily::kDeepSeekV4:
      return "deepseek_v4";
    case ModelFamily::kGlm4MoeLite:
      return "glm4_moe_lite";
    case ModelFamily::kStep3p5:
      return "step3p5";
    case ModelFamily::kKimiLinear:
      return "kimi_linear";
    case ModelFamily::kBailingHybrid:
      return "bailing_hybrid";
    case ModelFamily::kEagle3:
      return "eagle3";
  }
  OUTRIDER_CHECK(false);
  return "";
}

const LayerSpec& ModelConfig::first_cached_layer() const {
  for (const LayerSpec& layer : layers) {
    if (!std::holds_alternative<KdaSpec>(layer.attention)) return layer;
  }
  OUTRIDER_CHECK(false, "parsers refuse networks of linear attention alone");
  return layers.front();
}

ModelConfig ReadModelConfig(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw NotFound("{}: is not a directory; a Hugging Face model directory is needed",
                   directory.string());
  }
  const std::filesystem::path path = directory / "config.json";
  const std::filesystem::path generation_path = directory / "generation_config.json";
  const std::string text = ReadTextFile(path, kMaxConfigBytes);
  if (!std::filesystem::exists(generation_path, ignored)) {
    return ParseModelConfig(text, std::nullopt, path.string());
  }
  const std::string generation = ReadTextFile(generation_path, kMaxConfigBytes);
  return ParseModelConfig(text, generation, path.string());
}

}  // namespace outrider
