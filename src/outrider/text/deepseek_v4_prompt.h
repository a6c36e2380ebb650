// The prompt of DeepSeek-V4, which publishes an encoder in Python instead of a chat template:
// roles, reasoning, tools and their results, and the tokens of its internal tasks.
#pragma once

#include <string>
#include <string_view>

#include "outrider/text/deepseek_v4_options.h"

namespace outrider {

/// The prompt of `messages_json`: an array of messages with the roles system, user, assistant,
/// tool, developer and latest_reminder, and the members that the published encoder reads
/// ("content", "reasoning_content", "tool_calls", "tool_call_id", "tools", "response_format",
/// "task", "wo_eos"). `tools_json`, an array of tools or empty, goes to the first message. Throws
/// Error (kInvalidArgument) with one line that names the message.
///
/// Equal to the published encoder, which has no add_generation_prompt: it begins the assistant's
/// turn behind a question and nowhere else.
std::string EncodeDeepSeekV4(std::string_view messages_json, std::string_view tools_json,
                             const DeepSeekV4Options& options);

}  // namespace outrider
