// Finding markers in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace outrider {

struct MarkerMatch {
  size_t begin;                  // bytes that come before the marker, or belong to none
  std::optional<size_t> marker;  // which one; nothing when more text is needed to tell
};

/// The first marker in `text`; of several that begin together, the longest. `final`: no text
/// follows, so the beginning of a marker at the end is plain text. Whatever the text is cut into,
/// taking `begin` bytes and the marker, and so on, finds the same markers. Empty markers are
/// ignored.
MarkerMatch FindMarker(std::string_view text, std::span<const std::string_view> markers,
                       bool final);

}  // namespace outrider
