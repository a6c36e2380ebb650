// The messages of a chat request: checked, and brought into the one form that chat templates take.
#pragma once

#include <string>
#include <string_view>

#include "outrider/openai/field_reader.h"

namespace outrider::openai {

/// The field `messages` of `body` as a JSON array of {"role", "content"} and what else the role has
/// ("name", "tool_calls", "tool_call_id", "reasoning_content"): text parts are joined by line ends,
/// missing content is empty, role "developer" becomes "system". Members keep the order that they
/// have in `raw`, the text of the body. Throws RequestError naming the message that is wrong.
std::string ParseMessages(FieldReader& body, std::string_view raw);

}  // namespace outrider::openai
