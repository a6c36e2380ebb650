// Turns tokens into text as they come: gives out what is certain and keeps back the bytes of a
// character that is not complete yet.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "outrider/text/tokenizer.h"
#include "outrider/text/utf8.h"

namespace outrider {

/// What Push and Flush return, put together, equals Tokenizer::Decode of all the ids.
class StreamDetokenizer {
 public:
  /// `tokenizer` must outlive this object. `kept_special_tokens` are not skipped.
  StreamDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                    std::vector<int32_t> kept_special_tokens = {})
      : tokenizer_(&tokenizer),
        skip_special_tokens_(skip_special_tokens),
        kept_special_tokens_(std::move(kept_special_tokens)) {}

  /// The text that became certain with this token: whole UTF-8 characters, perhaps none.
  std::string Push(int32_t id);

  /// Ends the text: U+FFFD for a character that stays incomplete, else nothing.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> kept_special_tokens_;
  Utf8Stream stream_;
};

}  // namespace outrider
