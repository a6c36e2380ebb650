#include "outrider/draft/ngram_drafter.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

NgramDrafter::NgramDrafter(int32_t k, int32_t min_match, int32_t max_match)
    : k_(k),
      min_match_(static_cast<size_t>(min_match)),
      max_match_(static_cast<size_t>(max_match)) {
  OUTRIDER_CHECK(k >= 1 && min_match >= 1 && min_match <= max_match);
}

size_t NgramDrafter::Continuation(std::span<const TokenRef> tokens) const {
  const size_t size = tokens.size();
  size_t best = min_match_ - 1;
  size_t continuation = size;
  for (size_t end = size - 1; end > best && best < max_match_; --end) {
    // Compares backwards from tokens[end - 1] with the text's end.
    const size_t longest = std::min(end, max_match_);
    size_t length = 0;
    while (length < longest && tokens[end - 1 - length] == tokens[size - 1 - length]) ++length;
    if (length > best) {
      best = length;
      continuation = end;
    }
  }
  return continuation;
}

void NgramDrafter::Propose(std::span<const DraftRequest> requests, int32_t /*depth*/,
                           Tensor /*target*/, MatrixView<TokenRef> drafts) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (request.num_drafts == 0) continue;
    TokenRef* row = drafts.row(static_cast<int64_t>(i));
    const std::span<const TokenRef> tokens = request.tokens;
    size_t next = Continuation(tokens);
    if (next == tokens.size() && request.always_drafts) --next;
    if (next == tokens.size()) {
      row[0] = TokenRef();
      continue;
    }
    for (size_t j = 0; j < static_cast<size_t>(request.num_drafts); ++j) {
      // What was copied may be copied again: a text that repeats itself goes on repeating.
      row[j] = next + j < tokens.size() ? tokens[next + j] : row[next + j - tokens.size()];
    }
  }
}

}  // namespace outrider
