// The input of /v1/responses, a text or a list of items, as the messages of a conversation.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace outrider::openai {

/// A JSON array of messages in the form of ParseMessages: `instructions` come first, as the
/// system's message; calls and reasoning go to the assistant's message that they belong to. Throws
/// RequestError naming the item that is wrong.
std::string ParseResponseInput(const nlohmann::json* input,
                               const std::optional<std::string>& instructions);

}  // namespace outrider::openai
