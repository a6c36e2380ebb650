// Looks for stop strings in text that arrives in pieces, and releases text only when it cannot be
// the beginning of one. The result does not depend on how the text was cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// The stop is the occurrence that ends first; of several that end together, the longest.
class StopMatcher {
 public:
  /// `include_stop`: the stop string itself is released too. Throws Error (kInvalidArgument) for an
  /// empty stop string; an empty list never stops.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  /// Takes more text; returns what may be released. After a stop, text is ignored.
  std::string Push(std::string_view text);

  /// The text is at its end: returns what was held back, since no stop can follow.
  std::string Flush();

  bool stopped() const { return stopped_by_.has_value(); }
  /// Index, in the list given, of the stop string that was found.
  std::optional<size_t> stopped_by() const { return stopped_by_; }

 private:
  // One stop string and how many of its bytes the end of the text matches (Knuth-Morris-Pratt).
  struct Stop {
    std::string text;
    std::vector<size_t>
        border;  // border[n]: longest proper prefix of text[0..n) that is its suffix
    size_t matched = 0;

    void Advance(char byte);
  };

  std::vector<Stop> stops_;
  bool include_stop_;
  std::string held_;  // the longest end of the text that begins a stop string
  std::optional<size_t> stopped_by_;
};

}  // namespace outrider
