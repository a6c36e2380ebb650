#include "outrider/text/stream_detokenizer.h"

namespace outrider {

std::string StreamDetokenizer::Push(int32_t id) {
  std::string text;
  if (!skip_special_tokens_ || !tokenizer_->IsSpecial(id)) {
    stream_.Push(tokenizer_->TokenBytes(id), &text);
  }
  return text;
}

std::string StreamDetokenizer::Flush() {
  std::string text;
  stream_.Flush(&text);
  return text;
}

}  // namespace outrider
