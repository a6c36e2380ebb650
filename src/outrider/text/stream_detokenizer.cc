#include "outrider/text/stream_detokenizer.h"

#include <algorithm>

namespace outrider {

std::string StreamDetokenizer::Push(int32_t id) {
  std::string text;
  const auto& kept = kept_special_tokens_;
  if (!skip_special_tokens_ || !tokenizer_->IsSpecial(id) ||
      std::find(kept.begin(), kept.end(), id) != kept.end()) {
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
