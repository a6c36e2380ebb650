// The "format"s of JSON schema strings that are enforced: each has a pattern.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

/// An expression that strings of the format match as a whole ("date", "uuid", ...: the formats of
/// draft 2020-12 that are regular, by their grammars in the RFCs); nothing for other names, which
/// are annotations.
std::optional<std::string> PatternOfFormat(std::string_view format);

}  // namespace outrider
