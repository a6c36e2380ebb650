// Translates a pre-tokenizer's regular expression from Oniguruma's Ruby syntax, which Hugging Face
// tokenizers use, to PCRE2. The two read many constructs alike and some differently without an
// error (Kimi's `[A&&[^B]]`, `\h`, `x{1,3}+`): those are rewritten or refused, never passed on.
// Which characters a property has is ours to say (unicode_property.h): PCRE2 sees kinds of
// characters.
#pragma once

#include <string>
#include <string_view>

#include "outrider/text/character_kinds.h"

namespace outrider {

struct SplitPattern {
  std::string expression;  // over bytes, one for each character of the text: its kind
  CharacterKinds kinds;
};

/// The PCRE2 pattern that matches what `pattern` matches in Oniguruma. It is to be compiled for
/// bytes, without UTF, with multi-line anchors and newline LF. Throws Error (kInvalidArgument),
/// prefixed by `where`, naming the construct that has no known equal.
SplitPattern TranslateSplitPattern(std::string_view pattern, std::string_view where);

}  // namespace outrider
