#include "outrider/text/deepseek_v4_options.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "outrider/base/error.h"
#include "outrider/base/file.h"

namespace outrider {
namespace {

constexpr const char* kEncoderFile = "encoding/encoding_dsv4.py";
constexpr size_t kMaxEncoderBytes = 16UL << 20;

DeepSeekV4Instruction InstructionOf(const std::string& effort, DeepSeekV4Efforts efforts) {
  const bool most = effort == "max" || effort == "xhigh";
  if (efforts == DeepSeekV4Efforts::kPreview) {
    return most ? DeepSeekV4Instruction::kThorough : DeepSeekV4Instruction::kNone;
  }
  if (most) return DeepSeekV4Instruction::kExhaustive;
  return effort == "high" ? DeepSeekV4Instruction::kThorough : DeepSeekV4Instruction::kNone;
}

}  // namespace

DeepSeekV4Efforts DeepSeekV4EffortsOf(const std::filesystem::path& directory) {
  bool newer = false;
  if (const auto encoder = directory / kEncoderFile; std::filesystem::exists(encoder)) {
    const std::string source = ReadTextFile(encoder, kMaxEncoderBytes);
    newer = source.find("REASONING_EFFORT_PROMPTS") != std::string::npos;
  } else if (const auto file = directory / "config.json"; std::filesystem::exists(file)) {
    const nlohmann::json config =
        nlohmann::json::parse(ReadTextFile(file, kMaxEncoderBytes), nullptr, false);
    if (config.is_object()) {
      for (const auto& [name, value] : config.items()) newer = newer || name.starts_with("dspark_");
    }
  }
  return newer ? DeepSeekV4Efforts::kRelease0731 : DeepSeekV4Efforts::kPreview;
}

DeepSeekV4Options ParseDeepSeekV4Options(std::string_view arguments_json,
                                         DeepSeekV4Efforts efforts) {
  DeepSeekV4Options options;
  if (arguments_json.empty()) return options;
  const nlohmann::json arguments = nlohmann::json::parse(arguments_json, nullptr, false);
  if (!arguments.is_object()) {
    throw InvalidArgument("chat_template_kwargs: must be a JSON object");
  }
  const auto find = [&](const char* name) {
    const auto found = arguments.find(name);
    return found == arguments.end() || found->is_null() ? nullptr : &*found;
  };
  const auto flag = [&](const char* name) -> std::optional<bool> {
    const nlohmann::json* const value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) {
      throw InvalidArgument("chat_template_kwargs.{}: must be true or false", name);
    }
    return value->get<bool>();
  };
  const std::optional<bool> thinking = flag("thinking");
  const std::optional<bool> enable_thinking = flag("enable_thinking");
  if (thinking || enable_thinking) {
    options.thinking = thinking.value_or(false) || enable_thinking.value_or(false);
  }
  options.drop_reasoning = flag("drop_thinking").value_or(true);
  if (const nlohmann::json* const effort = find("reasoning_effort")) {
    if (!effort->is_string()) {
      throw InvalidArgument("chat_template_kwargs.reasoning_effort: must be a string");
    }
    if (*effort == "none") options.thinking = false;
    options.instruction = InstructionOf(effort->get<std::string>(), efforts);
  }
  return options;
}

}  // namespace outrider
