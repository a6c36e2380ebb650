// The text of a value inside JSON text, byte for byte: what a parser would reorder (the members of
// a schema) or respell (its numbers) stays as the client wrote it.
#pragma once

#include <string_view>
#include <vector>

namespace outrider::openai {

/// The value that `path` leads to: names of members, and indices of array elements as decimal
/// numbers. `text` must be valid JSON; of members with the same name the last one counts. Empty
/// when there is no such value.
std::string_view RawJson(std::string_view text, const std::vector<std::string_view>& path);

}  // namespace outrider::openai
