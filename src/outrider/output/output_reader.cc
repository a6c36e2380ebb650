#include "outrider/output/output_reader.h"

#include <algorithm>
#include <string>

namespace outrider {

bool OutputReader::IsWanted(const OutputPiece& piece) {
  switch (piece.kind) {
    case OutputPiece::Kind::kReasoning:
      return task_.show_reasoning;
    case OutputPiece::Kind::kToolCall:
      ++num_calls_;
      [[fallthrough]];
    case OutputPiece::Kind::kArguments:
      return num_calls_ == 1 || !task_.one_call;
    case OutputPiece::Kind::kContent:
      return true;
  }
  return true;
}

std::vector<OutputPiece> OutputReader::Take(const OutputDelta& delta) {
  if (!parser_.reasoning_over()) {
    // The text as the engine makes it from tokens, to know where each stands.
    for (const int32_t id : delta.token_ids) {
      token_offsets_.push_back(text_size_);
      const auto& kept = task_.kept_special_tokens;
      if (skip_special_tokens_ && encoder_.IsSpecial(id) &&
          std::find(kept.begin(), kept.end(), id) == kept.end()) {
        continue;
      }
      std::string text;
      text_.Push(encoder_.TokenBytes(id), &text);
      text_size_ += static_cast<int64_t>(text.size());
    }
  }
  std::vector<OutputPiece> pieces;
  parser_.Push(delta.text, &pieces);
  if (delta.finish_reason) parser_.Finish(&pieces);
  std::erase_if(pieces, [this](const OutputPiece& piece) { return !IsWanted(piece); });
  return pieces;
}

int64_t OutputReader::reasoning_tokens() const {
  return std::lower_bound(token_offsets_.begin(), token_offsets_.end(), parser_.reasoning_bytes()) -
         token_offsets_.begin();
}

}  // namespace outrider
