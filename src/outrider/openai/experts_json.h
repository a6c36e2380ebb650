// The experts of a request's tokens as answers carry them: base64 of an array.
#pragma once

#include <string>

#include "outrider/engine/generation.h"

namespace outrider::openai {

/// A file of NumPy's with int16 [tokens, layers, top_k], in base64 (vLLM's form).
std::string ExpertsNpy(const RoutedExperts& experts);

/// The ids alone, as int32 [tokens, layers, top_k], little end first, in base64 (SGLang's form).
std::string ExpertsInt32(const RoutedExperts& experts);

/// Members of a choice, each with a comma before it: `routed_experts` in vLLM's form where the
/// delta has experts, and beside it `sgl_ext` in SGLang's where that is wanted.
std::string ExpertMembers(const OutputDelta& delta, bool with_sglangs);

}  // namespace outrider::openai
