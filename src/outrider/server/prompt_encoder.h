// What the protocol needs of a model's text side: prompts to token ids, token ids to bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// A conversation as the chat template takes it.
struct ChatPrompt {
  std::string messages_json;  // a JSON array of {"role", "content", ...}, contents are strings
  bool add_generation_prompt = true;
  std::string template_arguments_json = "{}";  // further variables of the template
};

/// Thread-safe. Failures that a request caused throw Error (kInvalidArgument).
class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;

  /// A text prompt's token ids, with or without what the tokenizer puts around a text (BOS).
  virtual std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const = 0;

  /// A rendered conversation's token ids. Throws when the model has no chat template.
  virtual std::vector<int32_t> EncodeChat(const ChatPrompt& chat) const = 0;

  /// The bytes a token stands for: possibly a part of a character; special tokens by their names.
  virtual std::string TokenBytes(int32_t token_id) const = 0;

  /// Token ids are below this.
  virtual int32_t vocab_size() const = 0;
};

}  // namespace outrider
