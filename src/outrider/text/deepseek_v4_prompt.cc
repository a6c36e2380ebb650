#include "outrider/text/deepseek_v4_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/deepseek_v4_conversation.h"
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

size_t LastQuestion(const std::vector<DeepSeekV4Message>& messages) {
  for (size_t i = messages.size(); i > 0; --i) {
    if (messages[i - 1].IsQuestion()) return i - 1;
  }
  return SIZE_MAX;
}

class PromptWriter {
 public:
  PromptWriter(std::vector<DeepSeekV4Message> messages, const DeepSeekV4Options& options)
      : messages_(std::move(messages)), options_(options), last_question_(LastQuestion(messages_)) {
    const bool tools =
        std::any_of(messages_.begin(), messages_.end(),
                    [](const DeepSeekV4Message& message) { return !message.tools.empty(); });
    drop_reasoning_ = options.drop_reasoning && !tools;
    if (options.thinking && drop_reasoning_ && last_question_ != SIZE_MAX) {
      // Earlier words of the developer go with the reasoning.
      const auto kept = messages_.begin() + static_cast<std::ptrdiff_t>(last_question_);
      messages_.erase(
          std::remove_if(messages_.begin(), kept,
                         [](const DeepSeekV4Message& m) { return m.role == "developer"; }),
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
    const DeepSeekV4Message& message = messages_[index];
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

  void WriteBlocks(const std::vector<DeepSeekV4Block>& blocks) {
    for (const DeepSeekV4Block& block : blocks) {
      if (&block != &blocks.front()) out_ += "\n\n";
      if (block.is_result) {
        out_.append("<tool_result>").append(block.text).append("</tool_result>");
      } else {
        out_ += block.text;
      }
    }
  }

  void WriteAnswer(size_t index) {
    const DeepSeekV4Message& message = messages_[index];
    const bool answers_task = index > 0 && !messages_[index - 1].task.empty();
    if (options_.thinking && !answers_task && (!drop_reasoning_ || IsNow(index))) {
      out_.append(message.reasoning).append(kThinkEnd);
    }
    out_ += message.content;
    if (!message.calls.empty()) {
      out_ += "\n\n<｜DSML｜tool_calls>\n";
      for (const DeepSeekV4Call& call : message.calls) WriteCall(call);
      out_ += "</｜DSML｜tool_calls>";
    }
    const bool continues = options_.continue_final_message && index + 1 == messages_.size();
    if (!message.without_end && !continues) out_ += kEndOfSentence;
  }

  void WriteCall(const DeepSeekV4Call& call) {
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
    const DeepSeekV4Message& message = messages_[index];
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

  std::vector<DeepSeekV4Message> messages_;
  const DeepSeekV4Options& options_;
  size_t last_question_;  // SIZE_MAX: none
  bool drop_reasoning_ = false;
  std::string out_;
};

}  // namespace

std::string EncodeDeepSeekV4(std::string_view messages_json, std::string_view tools_json,
                             const DeepSeekV4Options& options) {
  std::vector<DeepSeekV4Message> messages = ReadDeepSeekV4Conversation(messages_json, tools_json);
  if (options.continue_final_message && (messages.empty() || messages.back().role != "assistant")) {
    throw InvalidArgument(
        "continue_final_message: the last message must be the assistant's, for the model to "
        "continue it");
  }
  return PromptWriter(std::move(messages), options).Run();
}

}  // namespace outrider
