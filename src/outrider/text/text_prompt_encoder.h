// The prompt encoder of a real model: its tokenizer and its chat template.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/text/chat_template.h"
#include "outrider/text/prompt_encoder.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

class TextPromptEncoder : public PromptEncoder {
 public:
  /// `chat_template` may be null: then chat requests are refused. `vocab_size` is the model's,
  /// which may be larger than the tokenizer's. Both pointees must outlive the encoder.
  /// `special_tokens` are for TokenizerInfoJson.
  TextPromptEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                    int32_t vocab_size, std::map<std::string, std::string> special_tokens = {})
      : tokenizer_(tokenizer),
        chat_template_(chat_template),
        vocab_size_(vocab_size),
        special_tokens_(std::move(special_tokens)) {}

  std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const override;
  EncodedChat EncodeChat(const ChatPrompt& chat) const override;
  bool SupportsTools() const override;
  std::string TokenBytes(int32_t token_id) const override;
  std::string TokenizerInfoJson() const override;
  bool IsSpecial(int32_t token_id) const override { return tokenizer_.IsSpecial(token_id); }
  std::optional<int32_t> AddedToken(std::string_view text) const override;
  std::optional<size_t> LongestTokenBytes() const override {
    return tokenizer_.LongestTokenBytes();
  }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;
  int32_t vocab_size_;
  std::map<std::string, std::string> special_tokens_;
  mutable std::once_flag tools_probed_;
  mutable bool supports_tools_ = false;
};

/// A conversation of a message from a user, after a system message unless that is null. Bytes that
/// are no UTF-8 become U+FFFD.
ChatPrompt ConversationOf(const std::string& message, const std::string* system);

}  // namespace outrider
