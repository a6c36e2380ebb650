// tokenizer_config.json: what Hugging Face keeps about a tokenizer beside tokenizer.json. The names
// of the special tokens, whether BOS and EOS are added, and chat templates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace outrider {

/// The tokenizer_class of Kimi's models, whose code brings a tokenizer and its own way with tools.
inline constexpr const char* kKimiTokenizer = "TikTokenTokenizer";

struct TokenizerConfig {
  std::string tokenizer_class;  // empty if the file does not say
  /// "bos_token" -> "<s>" and so on: every *_token member that is a string or an object with
  /// "content".
  std::map<std::string, std::string> special_tokens;
  /// Name -> source. A single template is named "default". Empty if there is none.
  std::map<std::string, std::string> chat_templates;
  /// Whether BOS and EOS are added where tokenizer.json has no post-processor that adds tokens.
  /// True only for the classes LlamaTokenizer and LlamaTokenizerFast (DeepSeek-V2 and V3) with the
  /// flag written out; other classes ignore it.
  bool add_bos_token = false;
  bool add_eos_token = false;
};

/// Reads DIRECTORY/tokenizer_config.json; all defaults if there is no such file. Throws Error with
/// one line if it is malformed.
TokenizerConfig ReadTokenizerConfig(const std::filesystem::path& directory);

/// An entry of added_tokens_decoder.
struct NamedToken {
  std::string content;  // 1 to 1,024 bytes
  bool special = false;
};

/// The tokens that added_tokens_decoder of DIRECTORY/tokenizer_config.json names, by id: where a
/// tokenizer has no tokenizer.json, they are its special tokens. Throws Error with one line when
/// there is no such file or member, or it is malformed.
std::map<int32_t, NamedToken> ReadAddedTokensDecoder(const std::filesystem::path& directory);

}  // namespace outrider
