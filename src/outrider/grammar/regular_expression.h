// Regular expressions as ECMA-262 has them, in the plain form that the grammar compiler takes
// exactly: character classes are lists of what they hold, there are no names and lazy quantifiers.
// What dialects see differently (white space beyond ASCII, line ends) is matched only where all of
// them agree. Both throw Error (kInvalidArgument) for what is no expression or cannot be expressed:
// lookaround, backreferences, \b, \p, anchors in the middle.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// The "pattern" of a JSON schema: an expression for whole strings that hold a match of `pattern`,
/// which JSON writes without escapes. Classes are without quotation marks, backslashes, control
/// characters and surrogates; characters that need an escape are refused. It begins with '^' and
/// ends with '$'. The result of a result is itself.
std::string PatternForJsonString(std::string_view pattern);

/// An expression for texts that match `expression` as a whole. Anchors may stand at the two ends,
/// where they say nothing. The result of a result is itself.
std::string ExpressionForText(std::string_view expression);

}  // namespace outrider
