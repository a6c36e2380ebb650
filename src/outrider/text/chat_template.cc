#include "outrider/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/file.h"
#include "outrider/text/deepseek_v4_prompt.h"
#include "outrider/text/tokenizer_config.h"

namespace outrider {
namespace {

constexpr size_t kMaxSourceBytes = 1UL << 20;
constexpr size_t kMaxConfigBytes = 16UL << 20;

std::string ModelTypeIn(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  if (!std::filesystem::exists(file)) return "";
  const nlohmann::json config =
      nlohmann::json::parse(ReadTextFile(file, kMaxConfigBytes), nullptr, false);
  if (!config.is_object()) return "";
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace

ChatTemplate ChatTemplate::FromString(std::string source,
                                      const std::map<std::string, std::string>& special_tokens,
                                      std::string name) {
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kTooLarge, fmt::format("{}: has {} bytes, over the limit of {}", name,
                                                  source.size(), kMaxSourceBytes));
  }
  ChatTemplate chat;
  chat.name_ = std::move(name);
  chat.source_ = std::move(source);
  chat.tool_use_source_ = chat.source_;
  chat.special_tokens_ =
      nlohmann::json(special_tokens).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return chat;
}

ChatTemplate ChatTemplate::FromFile(const std::filesystem::path& file,
                                    const TokenizerConfig& config) {
  ChatTemplate chat =
      FromString(ReadTextFile(file, kMaxSourceBytes), config.special_tokens, file.string());
  chat.kimi_tools_ = config.tokenizer_class == kKimiTokenizer;
  return chat;
}

std::optional<ChatTemplate> ChatTemplate::FromModelDirectory(
    const std::filesystem::path& directory) {
  const TokenizerConfig config = ReadTokenizerConfig(directory);
  const std::filesystem::path file = directory / "chat_template.jinja";
  if (std::filesystem::exists(file)) return FromFile(file, config);
  if (config.chat_templates.empty()) {
    if (ModelTypeIn(directory) != "deepseek_v4") return std::nullopt;
    return DeepSeekV4(DeepSeekV4EffortsOf(directory));
  }
  const std::string name = (directory / "tokenizer_config.json").string() + ": chat_template";
  const auto chosen = config.chat_templates.find("default");
  if (chosen == config.chat_templates.end()) {
    throw InvalidArgument("{}: the list has no template named \"default\"", name);
  }
  ChatTemplate chat = FromString(chosen->second, config.special_tokens, name);
  chat.kimi_tools_ = config.tokenizer_class == kKimiTokenizer;
  const auto tool_use = config.chat_templates.find("tool_use");
  if (tool_use != config.chat_templates.end()) chat.tool_use_source_ = tool_use->second;
  return chat;
}

ChatTemplate ChatTemplate::DeepSeekV4(DeepSeekV4Efforts efforts) {
  ChatTemplate chat;
  chat.name_ = "DeepSeek-V4's prompts";
  chat.deepseek_v4_ = efforts;
  return chat;
}

void ChatTemplate::Check() const {
  if (deepseek_v4_) return;
  for (const std::string& source : {source_, tool_use_source_}) {
    RenderTemplate({.name = name_, .source = source, .compile_only = true});
  }
}

std::string ChatTemplate::Render(const std::string& messages_json,
                                 const RenderOptions& options) const {
  if (options.add_generation_prompt && options.continue_final_message) {
    throw InvalidArgument(
        "add_generation_prompt and continue_final_message exclude each other; set one of them to "
        "false");
  }
  if (deepseek_v4_) {
    DeepSeekV4Options prompt = ParseDeepSeekV4Options(options.extra_json, *deepseek_v4_);
    prompt.add_generation_prompt = options.add_generation_prompt;
    prompt.continue_final_message = options.continue_final_message;
    return EncodeDeepSeekV4(messages_json, options.tools_json, prompt);
  }
  return RenderTemplate({.name = "chat template",
                         .source = options.tools_json.empty() ? source_ : tool_use_source_,
                         .special_tokens = special_tokens_,
                         .messages = messages_json,
                         .tools = options.tools_json,
                         .extra = options.extra_json,
                         .kimi_tools = kimi_tools_,
                         .add_generation_prompt = options.add_generation_prompt,
                         .continue_final_message = options.continue_final_message,
                         .limits = options.limits});
}

}  // namespace outrider
