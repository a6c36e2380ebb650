// Where an engine's weights are read from.
#pragma once

#include <string>

namespace outrider {

struct WeightFolders {
  std::string model;    // the target's, with the draft modules that are its own
  std::string drafter;  // of a drafter with a checkpoint of its own; "": it has none
};

}  // namespace outrider
