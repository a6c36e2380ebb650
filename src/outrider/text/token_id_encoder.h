// The text side of a model without a tokenizer, as of one with random weights: prompts are token
// ids, and answers have no text.
#pragma once

#include "outrider/text/prompt_encoder.h"

namespace outrider {

class TokenIdEncoder : public PromptEncoder {
 public:
  explicit TokenIdEncoder(int32_t vocab_size) : vocab_size_(vocab_size) {}

  /// Both throw Error.
  std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const override;
  EncodedChat EncodeChat(const ChatPrompt& chat) const override;

  bool SupportsTools() const override { return false; }
  std::string TokenBytes(int32_t /*token_id*/) const override { return ""; }
  std::string TokenizerInfoJson() const override;
  bool IsSpecial(int32_t /*token_id*/) const override { return false; }
  std::optional<int32_t> AddedToken(std::string_view /*text*/) const override {
    return std::nullopt;
  }
  std::optional<size_t> LongestTokenBytes() const override { return std::nullopt; }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  const int32_t vocab_size_;
};

/// What to say where a tokenizer is needed and there is none.
Error NeedsTokenizer();

}  // namespace outrider
