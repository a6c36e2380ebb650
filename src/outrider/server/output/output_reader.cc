#include "outrider/server/output/output_reader.h"

#include <algorithm>
#include <string>

namespace outrider {

void OutputReader::Take(const OutputDelta& delta, std::vector<OutputPiece>* pieces) {
  if (!parser_.reasoning_over()) {
    // The text as the engine makes it from tokens, to know where each stands.
    for (const int32_t id : delta.token_ids) {
      token_offsets_.push_back(text_size_);
      if (skip_special_tokens_ && encoder_.IsSpecial(id)) continue;
      std::string text;
      text_.Push(encoder_.TokenBytes(id), &text);
      text_size_ += static_cast<int64_t>(text.size());
    }
  }
  parser_.Push(delta.text, pieces);
  if (delta.finish_reason) parser_.Finish(pieces);
}

int64_t OutputReader::reasoning_tokens() const {
  return std::lower_bound(token_offsets_.begin(), token_offsets_.end(), parser_.reasoning_bytes()) -
         token_offsets_.begin();
}

}  // namespace outrider
