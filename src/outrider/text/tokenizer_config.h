// tokenizer_config.json: what Hugging Face keeps about a tokenizer beside tokenizer.json. The names
// of the special tokens, whether BOS and EOS are added, and chat templates.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace outrider {

struct TokenizerConfig {
  /// "bos_token" -> "<s>" and so on: every *_token member that is a string or an object with
  /// "content".
  std::map<std::string, std::string> special_tokens;
  /// Name -> source. A single template is named "default". Empty if there is none.
  std::map<std::string, std::string> chat_templates;
  /// True for LlamaTokenizer and LlamaTokenizerFast (DeepSeek-V2 and V3), which add BOS and EOS by
  /// the two flags below, whatever post-processor tokenizer.json has. Other classes ignore the
  /// flags.
  bool flags_decide = false;
  bool add_bos_token = false;
  bool add_eos_token = false;
};

/// Reads DIRECTORY/tokenizer_config.json; all defaults if there is no such file. Throws Error with
/// one line if it is malformed.
TokenizerConfig ReadTokenizerConfig(const std::filesystem::path& directory);

}  // namespace outrider
