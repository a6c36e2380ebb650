// What a request must fulfil to enter an engine, beyond the ranges of its sampling fields.
#pragma once

#include "outrider/engine/engine_core.h"
#include "outrider/engine/generation.h"

namespace outrider {

/// Throws Error (kInvalidArgument) when the request can never run in this engine: the message names
/// the field, its value and the limit.
void CheckRequest(const GenerationRequest& request, const EngineCore& core);

}  // namespace outrider
