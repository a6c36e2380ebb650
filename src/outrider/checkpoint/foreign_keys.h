// Keys of config.json by which other networks compute differently from Outrider's. A config that
// sets one describes another network, even when its tensors have the shapes that are needed.
#pragma once

#include <cstdint>

#include "outrider/checkpoint/config_reader.h"

namespace outrider {

/// Refuses every such key of a language model's config that has not been read, unless its value
/// changes nothing.
void RefuseForeignKeys(ConfigReader& reader, int64_t max_position_embeddings);

}  // namespace outrider
