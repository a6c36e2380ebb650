#include "outrider/text/tokenizer_config.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/base/file.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
constexpr size_t kMaxTokenizerConfigBytes = 64UL << 20;
constexpr int32_t kMaxNamedId = (1 << 21) - 1;
constexpr size_t kMaxTokenNameBytes = 1024;

Json ReadRoot(const std::filesystem::path& path) {
  const std::string where = path.string();
  Json root;
  try {
    root = Json::parse(ReadTextFile(path, kMaxTokenizerConfigBytes));
  } catch (const Json::exception& error) {
    throw InvalidArgument("{}: not valid JSON: {}", where, error.what());
  }
  if (!root.is_object()) throw InvalidArgument("{}: must hold a JSON object", where);
  return root;
}

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
  const std::filesystem::path path = directory / kTokenizerConfigFile;
  if (!std::filesystem::exists(path)) return config;
  const std::string where = path.string();
  const Json root = ReadRoot(path);
  ReadSpecialTokens(root, &config.special_tokens);
  ReadChatTemplates(root, where, &config.chat_templates);
  const auto tokenizer_class = root.find("tokenizer_class");
  if (tokenizer_class != root.end() && tokenizer_class->is_string()) {
    config.tokenizer_class = tokenizer_class->get<std::string>();
  }
  const bool llama =
      config.tokenizer_class == "LlamaTokenizerFast" || config.tokenizer_class == "LlamaTokenizer";
  config.add_bos_token = ReadFlag(root, "add_bos_token", where) && llama;
  config.add_eos_token = ReadFlag(root, "add_eos_token", where) && llama;
  return config;
}

std::map<int32_t, NamedToken> ReadAddedTokensDecoder(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kTokenizerConfigFile;
  const Json root = ReadRoot(path);
  const auto decoder = root.find("added_tokens_decoder");
  if (decoder == root.end() || !decoder->is_object()) {
    throw InvalidArgument(
        "{}: has no object added_tokens_decoder, which names the tokenizer's special tokens",
        path.string());
  }
  std::map<int32_t, NamedToken> tokens;
  for (const auto& [key, value] : decoder->items()) {
    const std::string where =
        fmt::format("{}: added_tokens_decoder[{}]", path.string(), Json(key).dump());
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || rest != key.data() + key.size() || id < 0 || id > kMaxNamedId) {
      throw InvalidArgument("{}: is no id; ids are integers from 0 to {}", where, kMaxNamedId);
    }
    const auto content = value.is_object() ? value.find("content") : value.end();
    if (!value.is_object() || content == value.end() || !content->is_string()) {
      throw InvalidArgument("{}: must be an object with a string \"content\"", where);
    }
    NamedToken token = {.content = content->get<std::string>(),
                        .special = ReadFlag(value, "special", where)};
    if (token.content.empty() || token.content.size() > kMaxTokenNameBytes) {
      throw InvalidArgument("{}: has {} bytes of content; it must have 1 to {}", where,
                            token.content.size(), kMaxTokenNameBytes);
    }
    if (!tokens.emplace(id, std::move(token)).second) {
      throw InvalidArgument("{}: the id {} is there twice", where, id);
    }
  }
  return tokens;
}

}  // namespace outrider
