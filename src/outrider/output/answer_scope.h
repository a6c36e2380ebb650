// Stop strings are about a model's answer: not about its reasoning, nor about its tool calls.
#pragma once

#include <memory>

#include "outrider/output/output_parser.h"
#include "outrider/text/stop_scope.h"

namespace outrider {

/// The scope of texts in which `task` tells the parts apart.
MakeStopScope MakeAnswerScope(const OutputTask& task);

}  // namespace outrider
