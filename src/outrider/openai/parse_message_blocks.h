// The conversation of a request to /v1/messages, whose messages are made of blocks.
#pragma once

#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// Reads `system` and `messages` of a body, whose text is `raw`, into messages as chat templates
/// take them (ChatPrompt::messages_json). Results of tools become messages of the role "tool",
/// thinking becomes reasoning_content, and the model goes on in a last message of the assistant's.
/// Throws RequestError for what is no text.
void ParseMessageBlocks(FieldReader& body, std::string_view raw, ChatPrompt* chat);

}  // namespace outrider::openai
