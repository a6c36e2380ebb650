#include "outrider/openai/parse_response_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"

namespace outrider::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// A string, or parts of the given types; joined by line ends, as in chat completions.
std::string ParseText(FieldReader& item, const char* name,
                      std::initializer_list<std::string_view> part_types) {
  const json* value = item.Find(name);
  if (value == nullptr) item.Refuse(name, "is missing; it must be text");
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) {
    item.Refuse(name,
                fmt::format("must be a string or an array of parts, not {}", Shorten(*value)));
  }
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    FieldReader part((*value)[i], fmt::format("{}[{}]", item.PathOf(name), i), item);
    const std::optional<std::string> type = part.String("type");
    if (!type || std::find(part_types.begin(), part_types.end(), *type) == part_types.end()) {
      part.Refuse("type",
                  fmt::format("must be \"{}\": only text is supported", *part_types.begin()));
    }
    const std::optional<std::string> piece = part.String("text");
    if (!piece) part.Refuse("text", "is missing; it must be a string");
    for (const char* other : {"annotations", "logprobs"}) part.Find(other);  // of earlier answers
    part.RefuseUnknown();
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

class Conversation {
 public:
  void Add(FieldReader& body, const json& value, size_t index) {
    FieldReader item(value, fmt::format("input[{}]", index), body);
    const std::string type = item.String("type").value_or("message");
    for (const char* name : {"id", "status"}) item.String(name);  // of earlier answers
    if (type == "message") {
      AddMessage(item);
    } else if (type == "function_call") {
      AddCall(item, item.String("arguments").value_or(""));
    } else if (type == "custom_tool_call") {
      const std::optional<std::string> input = item.String("input");
      if (!input) item.Refuse("input", "is missing; it must be a string");
      AddCall(item, json{{"input", *input}}.dump());
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      AddResult(item);
    } else if (type == "reasoning") {
      AddReasoning(item);
    } else {
      item.Refuse("type", fmt::format("{} is not supported; use \"message\", \"function_call\", "
                                      "\"function_call_output\", \"custom_tool_call\", "
                                      "\"custom_tool_call_output\" or \"reasoning\"",
                                      Shorten(json(type))));
    }
    item.RefuseUnknown();
  }

  void AddText(const char* role, std::string text) {
    messages_.push_back({{"role", role}, {"content", std::move(text)}});
  }

  std::string Dump() const { return messages_.dump(); }

 private:
  void AddMessage(FieldReader& item) {
    const std::string role = item.String("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      item.Refuse("role", R"(must be "user", "assistant", "system" or "developer")");
    }
    item.String("phase");  // of earlier answers
    std::string text = ParseText(item, "content", {"input_text", "output_text", "text"});
    if (role == "assistant") {
      ordered_json& message = Assistant(/*with_text=*/true);
      message["content"] = std::move(text);
    } else {
      AddText(role == "user" ? "user" : "system", std::move(text));
    }
  }

  void AddCall(FieldReader& item, const std::string& arguments) {
    const std::optional<std::string> id = item.String("call_id");
    if (!id) item.Refuse("call_id", "is missing; it must be a string");
    const std::optional<std::string> name = item.String("name");
    if (!name) item.Refuse("name", "is missing; it must be a string");
    Assistant(/*with_text=*/false)["tool_calls"].push_back(
        {{"id", *id},
         {"type", "function"},
         {"function", {{"name", *name}, {"arguments", arguments.empty() ? "{}" : arguments}}}});
  }

  void AddResult(FieldReader& item) {
    const std::optional<std::string> id = item.String("call_id");
    if (!id) item.Refuse("call_id", "is missing; it must be a string");
    messages_.push_back({{"role", "tool"},
                         {"tool_call_id", *id},
                         {"content", ParseText(item, "output", {"input_text", "output_text"})}});
  }

  void AddReasoning(FieldReader& item) {
    item.Find("summary");
    item.Unsupported("encrypted_content", {});
    if (item.Find("content") == nullptr) return;
    std::string text = ParseText(item, "content", {"reasoning_text"});
    AddText("assistant", "");
    messages_.back()["reasoning_content"] = std::move(text);
  }

  // The assistant's message that goes on. With text: one that has none yet, nor calls.
  ordered_json& Assistant(bool with_text) {
    const bool goes_on = !messages_.empty() && messages_.back()["role"] == "assistant";
    if (!goes_on ||
        (with_text && (!messages_.back()["content"].get_ref<const std::string&>().empty() ||
                       messages_.back().contains("tool_calls")))) {
      AddText("assistant", "");
    }
    return messages_.back();
  }

  ordered_json messages_ = ordered_json::array();
};

}  // namespace

std::string ParseResponseInput(FieldReader& body) {
  const json* input = body.Find("input");
  std::optional<std::string> instructions = body.String("instructions");
  const char* const kWanted = "must be a string or an array of at least one item";
  const auto refuse = [&](const std::string& what) {
    throw RequestError(ErrorCode::kInvalidArgument, "input", "input: " + what);
  };
  Conversation conversation;
  if (instructions) conversation.AddText("system", std::move(*instructions));
  if (input == nullptr) {
    refuse(fmt::format("is missing; it {}", kWanted));
  } else if (input->is_string()) {
    conversation.AddText("user", input->get<std::string>());
  } else if (input->is_array() && !input->empty()) {
    size_t index = 0;
    for (const json& item : *input) conversation.Add(body, item, index++);
  } else {
    refuse(fmt::format("{}, not {}", kWanted, Shorten(*input)));
  }
  return conversation.Dump();
}

}  // namespace outrider::openai
