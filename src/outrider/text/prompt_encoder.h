// What the protocol needs of a model's text side: prompts to token ids, token ids to bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {

/// A conversation as the chat template takes it.
struct ChatPrompt {
  std::string messages_json;  // a JSON array of {"role", "content", ...}, contents are strings
  std::string tools_json;     // a JSON array of tools as the client spelled it; "": none
  bool add_generation_prompt = true;
  bool continue_final_message = false;         // the model goes on in the last message
  std::string template_arguments_json = "{}";  // further variables of the template
  size_t max_bytes = SIZE_MAX;                 // of the prompt: PromptTooLong otherwise
};

/// A conversation's prompt is longer than was asked for.
class PromptTooLong : public Error {
 public:
  explicit PromptTooLong(size_t bytes)
      : Error(ErrorCode::kTooLarge, fmt::format("the prompt has {} bytes", bytes)), bytes_(bytes) {}
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
};

/// A prompt as text and as tokens.
struct EncodedChat {
  std::string text;
  std::vector<int32_t> token_ids;
};

/// Thread-safe. Failures that a request caused throw Error (kInvalidArgument).
class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;

  /// A text prompt's token ids, with or without what the tokenizer puts around a text (BOS).
  virtual std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const = 0;

  /// Renders a conversation. Throws when the model has no chat template; PromptTooLong, before it
  /// is encoded.
  virtual EncodedChat EncodeChat(const ChatPrompt& chat) const = 0;

  /// Whether the chat template shows a conversation's tools to the model.
  virtual bool SupportsTools() const = 0;

  /// The bytes a token stands for: possibly a part of a character; special tokens by their names.
  virtual std::string TokenBytes(int32_t token_id) const = 0;

  /// What clients ask of a tokenizer: a JSON object with the special tokens ("bos_token", ...) and
  /// "chat_template".
  virtual std::string TokenizerInfoJson() const = 0;

  /// Whether a token is a control token, which texts leave out by default.
  virtual bool IsSpecial(int32_t token_id) const = 0;

  /// The token that was added to the vocabulary with this text, as control tokens and marks are.
  virtual std::optional<int32_t> AddedToken(std::string_view text) const = 0;

  /// No token stands for more bytes of a text; nothing where there is no such number.
  virtual std::optional<size_t> LongestTokenBytes() const = 0;

  /// Token ids are below this.
  virtual int32_t vocab_size() const = 0;
};

}  // namespace outrider
