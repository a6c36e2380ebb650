// JSON spelled straight into strings, for what is written once per token.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// `text` as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD.
std::string JsonString(std::string_view text);

}  // namespace outrider
