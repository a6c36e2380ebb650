// The fields of a chat request that go to the model's chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// Reads messages, add_generation_prompt, continue_final_message, chat_template_kwargs,
/// reasoning_effort and verbosity; `raw` is the text of the body. Throws RequestError.
void ParseChatTemplate(FieldReader& body, std::string_view raw, ChatPrompt* chat);

/// Reads chat_template_kwargs; `effort`, if given, comes from the field `effort_name` and sets what
/// templates know of it. Throws RequestError.
void ParseTemplateArguments(FieldReader& body, const char* effort_name,
                            const std::optional<std::string>& effort, ChatPrompt* chat);

/// Switches thinking on or off in templates that have a switch, whatever the arguments said so far.
void SetThinking(bool on, ChatPrompt* chat);

/// Reads `verbosity`, which the template gets as an argument if it is given: whether it makes use
/// of it is the template's affair. Throws RequestError.
void ParseVerbosity(FieldReader& fields, ChatPrompt* chat);

}  // namespace outrider::openai
