// Translates a pre-tokenizer's regular expression from Oniguruma's Ruby syntax, which Hugging Face
// tokenizers use, to PCRE2. The two read many constructs alike and some differently without an
// error (Kimi's `[A&&[^B]]`, `\h`, `x{1,3}+`): those are rewritten or refused, never passed on.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// The PCRE2 pattern that matches what `pattern` matches in Oniguruma. It is to be compiled with
/// UTF, UCP, multi-line anchors and newline LF. Throws Error (kInvalidArgument), prefixed by
/// `where`, naming the construct that has no known equal.
std::string TranslateSplitPattern(std::string_view pattern, std::string_view where);

}  // namespace outrider
