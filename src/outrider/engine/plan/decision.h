// A line of `outrider explain`: what was chosen, and why. Plans append theirs in the order in which
// they decide.
#pragma once

#include <string>
#include <vector>

namespace outrider {

struct Decision {
  std::string what;   // e.g. "drafter"
  std::string value;  // e.g. "ChainDrafter, k = 3"
  std::string why;    // e.g. "the checkpoint has 3 chained MTP modules"
};

using Decisions = std::vector<Decision>;

}  // namespace outrider
