// The "pattern" of a JSON schema, a regular expression as ECMA-262 has them, in the plain form that
// the grammar compiler takes exactly.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// An expression for strings that match `pattern` as a whole, which JSON writes without escapes:
/// character classes are lists of what they hold, without quotation marks, backslashes, control
/// characters and surrogates; there are no anchors, names or lazy quantifiers. What dialects see
/// differently (white space beyond ASCII, line ends) is matched only where all of them agree.
/// Throws Error (kInvalidArgument) for what is no expression or cannot be expressed: lookaround,
/// backreferences, \b, \p, anchors in the middle, characters that need an escape.
std::string PatternForJsonString(std::string_view pattern);

}  // namespace outrider
