#include "outrider/text/deepseek_v4_prompt.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/python_json.h"

namespace outrider {
namespace {

// What the model was trained on, to the letter.
constexpr std::string_view kBeginOfSentence = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};

constexpr std::string_view kThorough =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
constexpr std::string_view kExhaustive =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

// Around the tools' schemas, which stand one to a line.
constexpr std::string_view kToolsBegin =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<｜DSML｜tool_calls>\" block like the following:\n\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsEnd =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// A call that the assistant made. `arguments` is JSON text, or what a client sent in its place.
struct PromptCall {
  std::string id;
  std::string name;
  std::string arguments;
};

// What a user's turn consists of: texts, and results of tools.
struct PromptBlock {
  std::string text;
  bool is_result = false;
  std::string call_id = {};
};

struct PromptMessage {
  std::string role;
  std::string content = {};
  std::string reasoning = {};
  std::vector<PromptCall> calls = {};
  std::vector<PromptBlock> blocks = {};  // role user
  std::string tools = {};                // schemas, one to a line
  std::string response_format = {};      // a schema
  std::string_view task = {};            // one of kTasks, or empty
  bool without_end = false;              // no token ends the message
  bool IsQuestion() const { return role == "user" || role == "developer"; }
};

class PromptReader {
 public:
  std::vector<PromptMessage> Read(std::string_view messages_json, std::string_view tools_json) {
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
        messages_.insert(messages_.begin(), PromptMessage{.role = "system"});
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
    PromptMessage message;
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

  void AddQuestion(PromptMessage message) {
    PromptBlock block = {.text = message.content};
    if (InUsersTurn() && messages_.back().task.empty()) {
      messages_.back().blocks.push_back(std::move(block));
      return;
    }
    message.blocks.push_back(std::move(block));
    messages_.push_back(std::move(message));
  }

  void AddResult(const JsonText& json) {
    PromptBlock block = {
        .text = ResultText(json), .is_result = true, .call_id = String(json, "tool_call_id")};
    if (!InUsersTurn()) messages_.push_back(PromptMessage{.role = "user"});
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

  std::vector<PromptCall> Calls(const JsonText& json) const {
    std::vector<PromptCall> calls;
    for (const JsonText& call : Objects(json, "tool_calls")) {
      const JsonText function = Function(call, "tool_calls");
      PromptCall& made = calls.emplace_back();
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
  std::vector<PromptMessage> messages_;
};

// Results stand in the order of the calls that they answer.
void SortResults(std::vector<PromptMessage>* messages) {
  std::unordered_map<std::string, size_t> order;  // of the calls made last, by id
  for (PromptMessage& message : *messages) {
    if (message.role == "assistant" && !message.calls.empty()) {
      order.clear();
      for (size_t i = 0; i < message.calls.size(); ++i) {
        if (!message.calls[i].id.empty()) order[message.calls[i].id] = i;
      }
    }
    if (message.role != "user" || order.empty()) continue;
    std::vector<PromptBlock> results;
    for (const PromptBlock& block : message.blocks) {
      if (block.is_result) results.push_back(block);
    }
    const auto place = [&](const PromptBlock& result) {
      const auto found = order.find(result.call_id);
      return found == order.end() ? 0 : found->second;
    };
    std::stable_sort(
        results.begin(), results.end(),
        [&](const PromptBlock& a, const PromptBlock& b) { return place(a) < place(b); });
    auto next = results.begin();
    for (PromptBlock& block : message.blocks) {
      if (block.is_result) block = std::move(*next++);
    }
  }
}

size_t LastQuestion(const std::vector<PromptMessage>& messages) {
  for (size_t i = messages.size(); i > 0; --i) {
    if (messages[i - 1].IsQuestion()) return i - 1;
  }
  return SIZE_MAX;
}

class PromptWriter {
 public:
  PromptWriter(std::vector<PromptMessage> messages, const DeepSeekV4Options& options)
      : messages_(std::move(messages)), options_(options), last_question_(LastQuestion(messages_)) {
    const bool tools =
        std::any_of(messages_.begin(), messages_.end(),
                    [](const PromptMessage& message) { return !message.tools.empty(); });
    drop_reasoning_ = options.drop_reasoning && !tools;
    if (options.thinking && drop_reasoning_ && last_question_ != SIZE_MAX) {
      // Earlier words of the developer go with the reasoning.
      const auto kept = messages_.begin() + static_cast<std::ptrdiff_t>(last_question_);
      messages_.erase(std::remove_if(messages_.begin(), kept,
                                     [](const PromptMessage& m) { return m.role == "developer"; }),
                      kept);
      last_question_ = LastQuestion(messages_);
    }
  }

  std::string Run() {
    out_ = kBeginOfSentence;
    if (options_.thinking && !messages_.empty()) {
      if (options_.instruction == DeepSeekV4Instruction::kThorough) out_ += kThorough;
      if (options_.instruction == DeepSeekV4Instruction::kExhaustive) out_ += kExhaustive;
    }
    for (size_t i = 0; i < messages_.size(); ++i) {
      WriteMessage(i);
      WriteWhatFollows(i);
    }
    return std::move(out_);
  }

 private:
  // After the last question, or where there is none: its answer has reasoning.
  bool IsNow(size_t index) const { return last_question_ == SIZE_MAX || index > last_question_; }

  void WriteMessage(size_t index) {
    const PromptMessage& message = messages_[index];
    if (message.role == "assistant") {
      WriteAnswer(index);
      return;
    }
    if (message.role == "latest_reminder") out_ += kReminder;
    if (message.IsQuestion()) out_ += kUser;
    if (message.role == "user") {
      WriteBlocks(message.blocks);
      return;
    }
    out_ += message.content;
    if (message.role == "latest_reminder") return;
    if (!message.tools.empty()) out_.append(kToolsBegin).append(message.tools).append(kToolsEnd);
    if (!message.response_format.empty()) {
      out_.append(kResponseFormat).append(message.response_format);
    }
  }

  void WriteBlocks(const std::vector<PromptBlock>& blocks) {
    for (const PromptBlock& block : blocks) {
      if (&block != &blocks.front()) out_ += "\n\n";
      if (block.is_result) {
        out_.append("<tool_result>").append(block.text).append("</tool_result>");
      } else {
        out_ += block.text;
      }
    }
  }

  void WriteAnswer(size_t index) {
    const PromptMessage& message = messages_[index];
    const bool answers_task = index > 0 && !messages_[index - 1].task.empty();
    if (options_.thinking && !answers_task && (!drop_reasoning_ || IsNow(index))) {
      out_.append(message.reasoning).append(kThinkEnd);
    }
    out_ += message.content;
    if (!message.calls.empty()) {
      out_ += "\n\n<｜DSML｜tool_calls>\n";
      for (const PromptCall& call : message.calls) WriteCall(call);
      out_ += "</｜DSML｜tool_calls>";
    }
    const bool continues = options_.continue_final_message && index + 1 == messages_.size();
    if (!message.without_end && !continues) out_ += kEndOfSentence;
  }

  void WriteCall(const PromptCall& call) {
    out_ += fmt::format("<｜DSML｜invoke name=\"{}\">\n", call.name);
    const std::optional<JsonText> arguments = JsonText::Parse(call.arguments);
    bool first = true;
    const auto write = [&](std::string_view name, bool is_string, std::string_view value) {
      out_ += fmt::format("{}<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>",
                          std::exchange(first, false) ? "" : "\n", name, is_string, value);
    };
    if (arguments && arguments->kind() == JsonText::Kind::kObject) {
      for (const auto& [name, value] : arguments->Members()) {
        const bool is_string = value.kind() == JsonText::Kind::kString;
        write(name, is_string, is_string ? value.String() : value.DumpLikePython());
      }
    } else {
      write("arguments", true, call.arguments);
    }
    out_ += "\n</｜DSML｜invoke>\n";
  }

  // Whose turn is next, and whether it begins with reasoning; or the token of a task.
  void WriteWhatFollows(size_t index) {
    const PromptMessage& message = messages_[index];
    const bool last = index + 1 == messages_.size();
    if (!last && messages_[index + 1].role != "assistant" &&
        messages_[index + 1].role != "latest_reminder") {
      return;
    }
    if (!message.task.empty()) {
      if (message.task == "action") BeginAnswer(options_.thinking);
      out_ += fmt::format("<｜{}｜>", message.task);
      return;
    }
    if (last ? !options_.add_generation_prompt : !message.IsQuestion()) return;
    const bool now = last || last_question_ == SIZE_MAX || index >= last_question_;
    BeginAnswer(options_.thinking && (!drop_reasoning_ || now));
  }

  void BeginAnswer(bool with_reasoning) {
    out_.append(kAssistant).append(with_reasoning ? kThinkBegin : kThinkEnd);
  }

  std::vector<PromptMessage> messages_;
  const DeepSeekV4Options& options_;
  size_t last_question_;  // SIZE_MAX: none
  bool drop_reasoning_ = false;
  std::string out_;
};

}  // namespace

std::string EncodeDeepSeekV4(std::string_view messages_json, std::string_view tools_json,
                             const DeepSeekV4Options& options) {
  std::vector<PromptMessage> messages = PromptReader().Read(messages_json, tools_json);
  if (options.continue_final_message && (messages.empty() || messages.back().role != "assistant")) {
    throw InvalidArgument(
        "continue_final_message: the last message must be the assistant's, for the model to "
        "continue it");
  }
  SortResults(&messages);
  return PromptWriter(std::move(messages), options).Run();
}

}  // namespace outrider
