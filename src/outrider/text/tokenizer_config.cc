#include "outrider/text/tokenizer_config.h"

#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/base/file.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 64UL << 20;

bool ReadFlag(const Json& root, const char* key, const std::string& where) {
  const auto value = root.find(key);
  if (value == root.end() || value->is_null()) return false;
  if (!value->is_boolean()) throw InvalidArgument("{}: {} must be true or false", where, key);
  return value->get<bool>();
}

void ReadSpecialTokens(const Json& root, std::map<std::string, std::string>* tokens) {
  for (const auto& [key, value] : root.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) {
      tokens->emplace(key, value.get<std::string>());
    } else if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      tokens->emplace(key, value["content"].get<std::string>());
    }
  }
}

void ReadChatTemplates(const Json& root, const std::string& where,
                       std::map<std::string, std::string>* templates) {
  const auto value = root.find("chat_template");
  if (value == root.end() || value->is_null()) return;
  if (value->is_string()) {
    templates->emplace("default", value->get<std::string>());
    return;
  }
  if (!value->is_array()) {
    throw InvalidArgument("{}: chat_template must be a string or a list of named templates", where);
  }
  for (const Json& entry : *value) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    if (!named) {
      throw InvalidArgument(
          "{}: chat_template has an entry that is not {{\"name\": string, \"template\": string}}",
          where);
    }
    templates->insert_or_assign(entry["name"].get<std::string>(),
                                entry["template"].get<std::string>());
  }
}

}  // namespace

TokenizerConfig ReadTokenizerConfig(const std::filesystem::path& directory) {
  TokenizerConfig config;
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return config;
  const std::string where = path.string();
  Json root;
  try {
    root = Json::parse(ReadTextFile(path, kMaxConfigBytes));
  } catch (const Json::exception& error) {
    throw InvalidArgument("{}: not valid JSON: {}", where, error.what());
  }
  if (!root.is_object()) throw InvalidArgument("{}: must hold a JSON object", where);
  ReadSpecialTokens(root, &config.special_tokens);
  ReadChatTemplates(root, where, &config.chat_templates);
  const auto tokenizer_class = root.find("tokenizer_class");
  const bool llama =
      tokenizer_class != root.end() && (*tokenizer_class == Json("LlamaTokenizerFast") ||
                                        *tokenizer_class == Json("LlamaTokenizer"));
  config.add_bos_token = ReadFlag(root, "add_bos_token", where) && llama;
  config.add_eos_token = ReadFlag(root, "add_eos_token", where) && llama;
  return config;
}

}  // namespace outrider
