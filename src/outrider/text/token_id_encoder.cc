#include "outrider/text/token_id_encoder.h"

#include <fmt/format.h>

namespace outrider {

std::vector<int32_t> TokenIdEncoder::EncodeText(std::string_view /*text*/,
                                                bool /*add_special_tokens*/) const {
  throw NeedsTokenizer();
}

EncodedChat TokenIdEncoder::EncodeChat(const ChatPrompt& /*chat*/) const { throw NeedsTokenizer(); }

std::string TokenIdEncoder::TokenizerInfoJson() const {
  return fmt::format(R"({{"vocab_size":{}}})", vocab_size_);
}

Error NeedsTokenizer() {
  return InvalidArgument(
      "the model has neither tokenizer.json nor tiktoken.model: name a directory that has one with "
      "--tokenizer");
}

}  // namespace outrider
