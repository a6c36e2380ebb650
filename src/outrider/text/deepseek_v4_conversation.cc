#include "outrider/text/deepseek_v4_conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/text/python_json.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};

class ConversationReader {
 public:
  std::vector<DeepSeekV4Message> Read(std::string_view messages_json, std::string_view tools_json) {
    const std::optional<JsonText> messages = JsonText::Parse(messages_json);
    if (!messages || messages->kind() != JsonText::Kind::kArray) {
      throw InvalidArgument("messages: must be a JSON array of messages");
    }
    for (const JsonText& message : messages->Elements()) {
      place_ = fmt::format("messages[{}]", index_++);
      Add(message);
    }
    if (!tools_json.empty()) {
      place_ = "tools";
      const std::optional<JsonText> tools = JsonText::Parse(tools_json);
      if (!tools) Fail("is not valid JSON");
      const std::string lines = Tools(*tools);
      if (lines.empty()) return std::move(messages_);
      if (messages_.empty() ||
          (messages_.front().role != "system" && messages_.front().role != "developer")) {
        messages_.insert(messages_.begin(), DeepSeekV4Message{.role = "system"});
      }
      messages_.front().tools = lines;
    }
    return std::move(messages_);
  }

 private:
  [[noreturn]] void Fail(std::string_view what) const {
    throw InvalidArgument("{}: {}", place_, what);
  }

  std::string String(const JsonText& object, std::string_view name) const {
    const std::optional<JsonText> value = object.Find(name);
    if (!value) return "";
    if (value->kind() != JsonText::Kind::kString) Fail(fmt::format("{} must be a string", name));
    return value->String();
  }

  void Add(const JsonText& json) {
    if (json.kind() != JsonText::Kind::kObject) Fail("must be an object");
    DeepSeekV4Message message;
    message.role = String(json, "role");
    if (message.role == "tool") {
      AddResult(json);
      return;
    }
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "developer" && message.role != "latest_reminder") {
      Fail(fmt::format("the role \"{}\" is unknown", message.role));
    }
    message.content = String(json, "content");
    message.reasoning = String(json, "reasoning_content");
    message.task = Task(json);
    if (const auto without_end = json.Find("wo_eos")) {
      if (without_end->kind() != JsonText::Kind::kBool) Fail("wo_eos must be true or false");
      message.without_end = without_end->Bool();
    }
    if (message.role == "user") {
      AddQuestion(std::move(message));
      return;
    }
    if (message.role == "developer" && message.content.empty()) Fail("content is empty");
    if (const auto tools = json.Find("tools")) message.tools = Tools(*tools);
    if (const auto format = json.Find("response_format")) {
      message.response_format = format->DumpLikePython();
      if (message.response_format == "{}") message.response_format.clear();
    }
    if (const auto calls = json.Find("tool_calls")) message.calls = Calls(*calls);
    messages_.push_back(std::move(message));
  }

  // The turn of a user goes on through results and texts until somebody else speaks.
  bool InUsersTurn() const { return !messages_.empty() && messages_.back().role == "user"; }

  void AddQuestion(DeepSeekV4Message message) {
    DeepSeekV4Block block = {.text = message.content};
    if (InUsersTurn() && messages_.back().task.empty()) {
      messages_.back().blocks.push_back(std::move(block));
      return;
    }
    message.blocks.push_back(std::move(block));
    messages_.push_back(std::move(message));
  }

  void AddResult(const JsonText& json) {
    DeepSeekV4Block block = {
        .text = ResultText(json), .is_result = true, .call_id = String(json, "tool_call_id")};
    if (!InUsersTurn()) messages_.push_back(DeepSeekV4Message{.role = "user"});
    messages_.back().blocks.push_back(std::move(block));
  }

  std::string ResultText(const JsonText& json) const {
    const std::optional<JsonText> content = json.Find("content");
    if (!content || content->kind() != JsonText::Kind::kArray) return String(json, "content");
    std::string text;
    bool first = true;
    for (const JsonText& part : content->Elements()) {
      if (part.kind() != JsonText::Kind::kObject) Fail("content has a part that is no object");
      if (!std::exchange(first, false)) text += "\n\n";
      const std::string type = String(part, "type");
      text += type == "text" ? String(part, "text") : fmt::format("[Unsupported {}]", type);
    }
    return text;
  }

  std::string_view Task(const JsonText& json) const {
    const std::optional<JsonText> task = json.Find("task");
    if (!task) return "";
    const std::string name = String(json, "task");
    const auto* const known = std::find(kTasks.begin(), kTasks.end(), name);
    if (known == kTasks.end()) Fail(fmt::format("the task \"{}\" is unknown", name));
    return *known;
  }

  std::vector<JsonText> Objects(const JsonText& json, std::string_view name) const {
    if (json.kind() != JsonText::Kind::kArray) Fail(fmt::format("{} must be an array", name));
    std::vector<JsonText> objects = json.Elements();
    for (const JsonText& object : objects) {
      if (object.kind() != JsonText::Kind::kObject) {
        Fail(fmt::format("{} has an element that is no object", name));
      }
    }
    return objects;
  }

  JsonText Function(const JsonText& json, std::string_view name) const {
    const std::optional<JsonText> function = json.Find("function");
    if (!function || function->kind() != JsonText::Kind::kObject) {
      Fail(fmt::format("{} has an element without an object \"function\"", name));
    }
    return *function;
  }

  std::string Tools(const JsonText& json) const {
    std::string lines;
    for (const JsonText& tool : Objects(json, "tools")) {
      if (!lines.empty()) lines += '\n';
      lines += Function(tool, "tools").DumpLikePython();
    }
    return lines;
  }

  std::vector<DeepSeekV4Call> Calls(const JsonText& json) const {
    std::vector<DeepSeekV4Call> calls;
    for (const JsonText& call : Objects(json, "tool_calls")) {
      const JsonText function = Function(call, "tool_calls");
      DeepSeekV4Call& made = calls.emplace_back();
      made.id = String(call, "id");
      if (made.id.empty()) made.id = String(function, "id");
      made.name = String(function, "name");
      if (const auto arguments = function.Find("arguments")) {
        const bool is_text = arguments->kind() == JsonText::Kind::kString;
        made.arguments = is_text ? arguments->String() : arguments->text();
      }
    }
    return calls;
  }

  std::string place_;
  size_t index_ = 0;
  std::vector<DeepSeekV4Message> messages_;
};

// Results stand in the order of the calls that they answer.
void SortResults(std::vector<DeepSeekV4Message>* messages) {
  std::unordered_map<std::string, size_t> order;  // of the calls made last, by id
  for (DeepSeekV4Message& message : *messages) {
    if (message.role == "assistant" && !message.calls.empty()) {
      order.clear();
      for (size_t i = 0; i < message.calls.size(); ++i) {
        if (!message.calls[i].id.empty()) order[message.calls[i].id] = i;
      }
    }
    if (message.role != "user" || order.empty()) continue;
    const auto place = [&](const DeepSeekV4Block& result) {
      const auto found = order.find(result.call_id);
      return found == order.end() ? size_t{0} : found->second;
    };
    std::multimap<size_t, DeepSeekV4Block> results;  // by the place of their calls, then as given
    for (const DeepSeekV4Block& block : message.blocks) {
      if (block.is_result) results.emplace(place(block), block);
    }
    auto next = results.begin();
    for (DeepSeekV4Block& block : message.blocks) {
      if (block.is_result) block = std::move((next++)->second);
    }
  }
}

}  // namespace

std::vector<DeepSeekV4Message> ReadDeepSeekV4Conversation(std::string_view messages_json,
                                                          std::string_view tools_json) {
  std::vector<DeepSeekV4Message> messages = ConversationReader().Read(messages_json, tools_json);
  SortResults(&messages);
  return messages;
}

}  // namespace outrider
