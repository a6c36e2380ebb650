// A vllm.GenerateRequest as the engine's request for tokens.
#pragma once

#include <string_view>

#include "outrider/openai/request.h"

namespace outrider {

/// `bytes`: the serialized message. `stream`: the answer is one. Each field is checked by what
/// checks its namesake of the HTTP API. Throws openai::RequestError.
openai::TokenRequest ParseGrpcRequest(std::string_view bytes, bool stream,
                                      const openai::RequestLimits& limits);

}  // namespace outrider
