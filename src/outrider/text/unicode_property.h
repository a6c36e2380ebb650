// Unicode's properties by name: \p{Lu}, \p{Uppercase_Letter}, \p{Han}, \p{Alphabetic}.
#pragma once

#include <optional>
#include <string_view>

#include "outrider/text/code_point_set.h"

namespace outrider {

/// The characters of a general category or group of them (L, LC, M, N, P, S, Z, C), a script (not
/// its extensions), Any, Assigned, Alphabetic, Lowercase, Uppercase, White_Space, Ideographic,
/// Emoji or Extended_Pictographic. Case and '_' in the name do not count. Nothing, if there is no
/// such name.
std::optional<CodePointSet> FindUnicodeProperty(std::string_view name);

/// The characters of a property whose name is known to exist.
CodePointSet UnicodeProperty(std::string_view name);

}  // namespace outrider
