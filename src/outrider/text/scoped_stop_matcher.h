// Looks for stop strings in those parts of a text that they are about.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/text/stop_matcher.h"
#include "outrider/text/stop_scope.h"

namespace outrider {

class ScopedStopMatcher {
 public:
  /// As StopMatcher's. `scope` null: all of the text is looked at.
  ScopedStopMatcher(std::vector<std::string> stops, bool include_stop,
                    std::unique_ptr<StopScope> scope);

  /// Takes more text and returns what may be released. `may_stop` false: it is not looked at; such
  /// text comes first. After a stop, text is ignored.
  std::string Push(std::string_view text, bool may_stop);

  /// Takes the text's end and returns what was held back, up to a stop if one is in it.
  std::string End(std::string_view text);

  bool stopped() const { return matcher_.stopped(); }
  /// Index, in the list given, of the stop string that was found.
  std::optional<size_t> stopped_by() const { return matcher_.stopped_by(); }

 private:
  std::string Sort(std::string_view text, bool final);

  StopMatcher matcher_;
  std::unique_ptr<StopScope> scope_;
  std::string unsorted_;      // not known to be inside the scope or outside
  size_t not_looked_at_ = 0;  // bytes at the beginning of `unsorted_`
};

}  // namespace outrider
