// The fields of a request body that constrain the text: response_format, structured_outputs, and
// guided_json, guided_regex, guided_choice and guided_grammar, older names of its members.
#pragma once

#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/request.h"

namespace outrider::openai {

/// Sets request.grammar when one of them asks for something. `raw` is the text that `body` was
/// parsed from: schemas are taken from it, with their members in the client's order. Throws
/// RequestError; whether a schema or an expression makes sense shows when it is compiled.
void ParseStructuredOutput(FieldReader& body, std::string_view raw, TokenRequest* request);

}  // namespace outrider::openai
