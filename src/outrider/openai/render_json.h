// A request for tokens spelled as a body of /inference/v1/generate: what the server would run for a
// text or a conversation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/openai/request.h"

namespace outrider::openai {

/// `prompt` is the request's prompt as token ids, `max_tokens` what is resolved for it. Throws
/// RequestError for a chat whose answer is constrained: only who knows where its reasoning ends
/// can do that.
std::string RenderedJson(const TokenRequest& request, const std::vector<int32_t>& prompt,
                         int32_t max_tokens);

}  // namespace outrider::openai
