// What counts as space between the parts of a call: JSON's white space.
#pragma once

#include <string_view>

namespace outrider {

inline constexpr std::string_view kSpace = " \t\r\n";

/// `text` without space at its ends.
inline std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace outrider
