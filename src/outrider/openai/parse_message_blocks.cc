#include "outrider/openai/parse_message_blocks.h"

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/api_error.h"
#include "outrider/openai/raw_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Prefixes are cached in any case, whatever marks them.
void IgnoreCacheControl(FieldReader& block) { block.Object("cache_control"); }

std::string NeedString(FieldReader& block, const char* name) {
  std::optional<std::string> text = block.String(name);
  if (!text) block.Refuse(name, "is missing; it must be a string");
  return *std::move(text);
}

std::string ParseTextBlock(FieldReader& block) {
  IgnoreCacheControl(block);
  block.Array("citations");  // of earlier answers
  return NeedString(block, "text");
}

// A string, or text blocks; joined by line ends, as in chat completions.
std::string ParseText(FieldReader& owner, const char* name) {
  const json& value = *owner.Find(name);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) {
    owner.Refuse(
        name, fmt::format("must be a string or an array of text blocks, not {}", Shorten(value)));
  }
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    FieldReader block(value[i], fmt::format("{}[{}]", owner.PathOf(name), i), owner);
    if (block.String("type") != "text") {
      block.Refuse("type", "must be \"text\": only text is supported here");
    }
    if (i > 0) text += '\n';
    text += ParseTextBlock(block);
    block.RefuseUnknown();
  }
  return text;
}

class BlockConversation {
 public:
  void AddSystem(std::string text) { AddText("system", std::move(text)); }

  // `raw`: the message's text.
  void AddMessage(FieldReader& message, std::string_view raw) {
    const std::string role = message.String("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      message.Refuse("role", R"(must be "user", "assistant" or "system")");
    }
    const json* content = message.Find("content");
    if (content == nullptr) message.Refuse("content", "is missing; it must be text or blocks");
    if (content->is_array() && role != "system") {
      const std::vector<std::string_view> texts = RawElements(RawJson(raw, {"content"}));
      begun_ = false;
      for (size_t i = 0; i < content->size(); ++i) {
        FieldReader block((*content)[i], fmt::format("{}[{}]", message.PathOf("content"), i),
                          message);
        AddBlock(role, block, texts[i]);
        block.RefuseUnknown();
      }
      if (content->empty()) AddText(role, "");
    } else {
      AddText(role, ParseText(message, "content"));
    }
    message.RefuseUnknown();
  }

  const ordered_json& messages() const { return messages_; }

 private:
  void AddText(const std::string& role, std::string text) {
    messages_.push_back({{"role", role}, {"content", std::move(text)}});
  }

  void AddBlock(const std::string& role, FieldReader& block, std::string_view raw) {
    const std::string type = block.String("type").value_or("");
    const bool assistant = role == "assistant";
    if (type == "text") {
      std::string& content = Open(role)["content"].get_ref<ordered_json::string_t&>();
      if (!content.empty()) content += '\n';
      content += ParseTextBlock(block);
    } else if (type == "tool_result" && !assistant) {
      AddResult(block);
    } else if (type == "thinking" && assistant) {
      block.String("signature");  // of an earlier answer, which signed nothing
      IgnoreCacheControl(block);
      ordered_json& reasoning = Open(role)["reasoning_content"];
      const std::string before = reasoning.is_null() ? "" : reasoning.get<std::string>() + '\n';
      reasoning = before + NeedString(block, "thinking");
    } else if (type == "tool_use" && assistant) {
      AddCall(block, raw);
    } else {
      block.Refuse("type", fmt::format("{} is not supported in a message of the {}'s; use {}",
                                       Shorten(json(type)), role,
                                       assistant ? R"("text", "thinking" or "tool_use")"
                                                 : R"("text" or "tool_result")"));
    }
  }

  void AddCall(FieldReader& block, std::string_view raw) {
    const std::string id = NeedString(block, "id");
    const std::string name = NeedString(block, "name");
    block.Object("caller");  // of earlier answers
    IgnoreCacheControl(block);
    const json* input = block.Object("input");
    const std::string arguments = input == nullptr ? "{}" : std::string(RawJson(raw, {"input"}));
    Open("assistant")["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", arguments}}}});
  }

  void AddResult(FieldReader& block) {
    const std::string id = NeedString(block, "tool_use_id");
    block.Bool("is_error");  // chat templates have no place for it: the text tells
    IgnoreCacheControl(block);
    std::string text = block.Find("content") == nullptr ? "" : ParseText(block, "content");
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
    begun_ = false;
  }

  // The message that the blocks of one message of the API are gathered in. The results of tools
  // are messages of their own between them.
  ordered_json& Open(const std::string& role) {
    if (!begun_) AddText(role, "");
    begun_ = true;
    return messages_.back();
  }

  ordered_json messages_ = ordered_json::array();
  bool begun_ = false;  // the last message is of this message's blocks
};

}  // namespace

void ParseMessageBlocks(FieldReader& body, std::string_view raw, ChatPrompt* chat) {
  const json* messages = body.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw RequestError(ErrorCode::kInvalidArgument, "messages",
                       "messages: must be an array of at least one message");
  }
  BlockConversation conversation;
  if (body.Find("system") != nullptr) conversation.AddSystem(ParseText(body, "system"));
  const std::vector<std::string_view> texts = RawElements(RawJson(raw, {"messages"}));
  for (size_t i = 0; i < messages->size(); ++i) {
    FieldReader message((*messages)[i], fmt::format("messages[{}]", i), body);
    conversation.AddMessage(message, texts[i]);
  }
  const ordered_json& last = conversation.messages().back();
  chat->continue_final_message = last["role"] == "assistant" && !last.contains("tool_calls");
  chat->add_generation_prompt = !chat->continue_final_message;
  chat->messages_json = conversation.messages().dump();
}

}  // namespace outrider::openai
