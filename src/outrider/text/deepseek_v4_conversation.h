// A conversation as DeepSeek-V4's prompts have it, read from the JSON of a request: results of
// tools are part of the user's turn, in the order of the calls that they answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// A call that the assistant made. `arguments` is JSON text, or what a client sent in its place.
struct DeepSeekV4Call {
  std::string id;
  std::string name;
  std::string arguments;
};

/// What a user's turn consists of: texts, and results of tools.
struct DeepSeekV4Block {
  std::string text;
  bool is_result = false;
  std::string call_id = {};
};

struct DeepSeekV4Message {
  std::string role;
  std::string content = {};
  std::string reasoning = {};
  std::vector<DeepSeekV4Call> calls = {};
  std::vector<DeepSeekV4Block> blocks = {};  // role user
  std::string tools = {};                    // schemas, one to a line
  std::string response_format = {};          // a schema
  std::string_view task = {};                // "action", "query", ..., or empty
  bool without_end = false;                  // no token ends the message
  bool IsQuestion() const { return role == "user" || role == "developer"; }
};

/// `messages_json` and `tools_json` as EncodeDeepSeekV4 takes them. Throws Error (kInvalidArgument)
/// with one line that names the message.
std::vector<DeepSeekV4Message> ReadDeepSeekV4Conversation(std::string_view messages_json,
                                                          std::string_view tools_json);

}  // namespace outrider
