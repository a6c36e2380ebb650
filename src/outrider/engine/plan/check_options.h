// What is wrong with options whatever the model and the device are.
#pragma once

#include "outrider/engine/engine_options.h"

namespace outrider {

/// Throws Error for a value that is out of range, and for options that exclude each other.
void CheckOptions(const EngineOptions& options);

/// Throws Error if the attention backend needs another form of the KV cache than is asked for.
void CheckAttentionOptions(const EngineOptions& options);

}  // namespace outrider
