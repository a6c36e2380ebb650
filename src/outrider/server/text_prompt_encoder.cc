#include "outrider/server/text_prompt_encoder.h"

#include "outrider/base/error.h"

namespace outrider {

std::vector<int32_t> TextPromptEncoder::EncodeText(std::string_view text,
                                                   bool add_special_tokens) const {
  return tokenizer_.Encode(text, add_special_tokens);
}

std::vector<int32_t> TextPromptEncoder::EncodeChat(const ChatPrompt& chat) const {
  if (chat_template_ == nullptr) {
    throw InvalidArgument(
        "this model has no chat template; use /v1/completions with a prompt instead");
  }
  RenderOptions options;
  options.extra_json = chat.template_arguments_json;
  options.add_generation_prompt = chat.add_generation_prompt;
  // The template writes the special tokens itself, BOS included.
  return tokenizer_.Encode(chat_template_->Render(chat.messages_json, options), false);
}

std::string TextPromptEncoder::TokenBytes(int32_t token_id) const {
  return std::string(tokenizer_.TokenBytes(token_id));
}

}  // namespace outrider
