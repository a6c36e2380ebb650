// The tools of a chat request, and whether the model is to call them.
#pragma once

#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/request.h"

namespace outrider::openai {

/// Reads tools, tool_choice and parallel_tool_calls of a chat request, whose text is `raw`, into
/// request.tools and request.chat.tools_json. Throws RequestError.
void ParseTools(FieldReader& body, std::string_view raw, TokenRequest* request);

/// Reads the tools of a request to /v1/responses, whose tools have the function's members
/// themselves.
void ParseFlatTools(FieldReader& body, std::string_view raw, TokenRequest* request);

/// Reads the tools of a request to /v1/messages, whose tools have `input_schema` and whose
/// `tool_choice` says itself whether there may be several calls.
void ParseMessageTools(FieldReader& body, std::string_view raw, TokenRequest* request);

}  // namespace outrider::openai
