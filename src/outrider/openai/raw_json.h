// The text of a value inside JSON text, byte for byte: what a parser would reorder (the members of
// a schema) or respell (its numbers) stays as the client wrote it.
#pragma once

#include <string_view>
#include <vector>

namespace outrider::openai {

/// The value that `path`, names of members, leads to. `text` must be valid JSON; of members with
/// the same name the last one counts. Empty when there is no such value.
std::string_view RawJson(std::string_view text, const std::vector<std::string_view>& path);

/// The elements of an array, found in one pass; none where `array` is something else. It must be
/// valid JSON.
std::vector<std::string_view> RawElements(std::string_view array);

}  // namespace outrider::openai
