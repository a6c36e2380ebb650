#include "outrider/text/text_prompt_encoder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/base/json_text.h"

namespace outrider {

std::vector<int32_t> TextPromptEncoder::EncodeText(std::string_view text,
                                                   bool add_special_tokens) const {
  return tokenizer_.Encode(text, add_special_tokens);
}

bool TextPromptEncoder::SupportsTools() const {
  if (chat_template_ == nullptr) return false;
  // Nothing but a rendered conversation shows it: some templates only mention tools.
  std::call_once(tools_probed_, [this] {
    constexpr std::string_view kName = "outrider_probe";
    RenderOptions options;
    options.tools_json =
        fmt::format(R"([{{"type":"function","function":{{"name":"{}","description":"-",)"
                    R"("parameters":{{"type":"object","properties":{{}}}}}}}}])",
                    kName);
    const std::string text = chat_template_->Render(R"([{"role":"user","content":"-"}])", options);
    supports_tools_ = text.find(kName) != std::string::npos;
  });
  return supports_tools_;
}

EncodedChat TextPromptEncoder::EncodeChat(const ChatPrompt& chat) const {
  if (chat_template_ == nullptr) {
    throw InvalidArgument(
        "this model has no chat template; use /v1/completions with a prompt instead");
  }
  RenderOptions options;
  options.tools_json = chat.tools_json;
  options.extra_json = chat.template_arguments_json;
  options.add_generation_prompt = chat.add_generation_prompt;
  options.continue_final_message = chat.continue_final_message;
  EncodedChat encoded;
  encoded.text = chat_template_->Render(chat.messages_json, options);
  if (encoded.text.size() > chat.max_bytes) throw PromptTooLong(encoded.text.size());
  // The template writes the special tokens itself, BOS included.
  encoded.token_ids = tokenizer_.Encode(encoded.text, false);
  return encoded;
}

std::string TextPromptEncoder::TokenizerInfoJson() const {
  std::string members = fmt::format(R"("vocab_size":{})", tokenizer_.vocab_size());
  for (const auto& [name, token] : special_tokens_) {
    members += fmt::format(",{}:{}", JsonString(name), JsonString(token));
  }
  if (chat_template_ != nullptr) {
    members += R"(,"chat_template":)" + JsonString(chat_template_->source());
  }
  return '{' + members + '}';
}

std::optional<int32_t> TextPromptEncoder::AddedToken(std::string_view text) const {
  const std::optional<int32_t> token = tokenizer_.TokenId(text);
  return token && tokenizer_.IsAdded(*token) ? token : std::nullopt;
}

std::string TextPromptEncoder::TokenBytes(int32_t token_id) const {
  return std::string(tokenizer_.TokenBytes(token_id));
}

ChatPrompt ConversationOf(const std::string& message, const std::string* system) {
  nlohmann::json messages = nlohmann::json::array();
  if (system != nullptr) messages.push_back({{"role", "system"}, {"content", *system}});
  messages.push_back({{"role", "user"}, {"content", message}});
  ChatPrompt prompt;
  // Text from a terminal or a file may hold invalid UTF-8, which JSON cannot.
  prompt.messages_json = messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return prompt;
}

}  // namespace outrider
