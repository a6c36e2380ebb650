// The input of /v1/responses, a text or a list of items, as the messages of a conversation.
#pragma once

#include <string>

#include "outrider/openai/field_reader.h"

namespace outrider::openai {

/// Reads the fields `input` and `instructions`. A JSON array of messages in the form of
/// ParseMessages: the instructions come first, as the system's message; calls and reasoning go to
/// the assistant's message that they belong to. Throws RequestError naming the item that is wrong.
std::string ParseResponseInput(FieldReader& body);

}  // namespace outrider::openai
