#include "outrider/openai/parse_chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/openai/parse_messages.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

// Templates have a switch for reasoning under one of these names (DeepSeek's and Kimi's, GLM's), or
// take the effort itself.
constexpr std::array kReasoningSwitches = {"thinking", "enable_thinking"};

// `effort`, which came as the field `name`.
void AddReasoningEffort(FieldReader& body, const char* name, const std::string& effort,
                        json* arguments) {
  static constexpr std::array kEfforts = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    body.Refuse(name, fmt::format("{} is unknown; use \"none\", \"minimal\", \"low\", \"medium\", "
                                  "\"high\", \"xhigh\" or \"max\"",
                                  Shorten(json(effort))));
  }
  // What chat_template_kwargs says itself stays.
  arguments->emplace("reasoning_effort", effort);
  for (const char* key : kReasoningSwitches) arguments->emplace(key, effort != "none");
}

}  // namespace

void ParseTemplateArguments(FieldReader& body, const char* effort_name,
                            const std::optional<std::string>& effort, ChatPrompt* chat) {
  json arguments = json::object();
  if (const json* given = body.Find("chat_template_kwargs")) {
    if (!given->is_object()) {
      body.Refuse("chat_template_kwargs",
                  fmt::format("must be an object, not {}", Shorten(*given)));
    }
    arguments = *given;
  }
  if (effort) AddReasoningEffort(body, effort_name, *effort, &arguments);
  chat->template_arguments_json = arguments.dump();
}

void SetThinking(bool on, ChatPrompt* chat) {
  json arguments = json::parse(chat->template_arguments_json);
  for (const char* key : kReasoningSwitches) arguments[key] = on;
  chat->template_arguments_json = arguments.dump();
}

void ParseVerbosity(FieldReader& fields, ChatPrompt* chat) {
  const std::optional<std::string> verbosity = fields.String("verbosity");
  if (!verbosity) return;
  if (*verbosity != "low" && *verbosity != "medium" && *verbosity != "high") {
    fields.Refuse("verbosity", fmt::format(R"({} is unknown; use "low", "medium" or "high")",
                                           Shorten(json(*verbosity))));
  }
  json arguments = json::parse(chat->template_arguments_json);
  arguments.emplace("verbosity", *verbosity);
  chat->template_arguments_json = arguments.dump();
}

void ParseChatTemplate(FieldReader& body, std::string_view raw, ChatPrompt* chat) {
  chat->messages_json = ParseMessages(body, raw);
  chat->continue_final_message = body.Bool("continue_final_message").value_or(false);
  chat->add_generation_prompt =
      body.Bool("add_generation_prompt").value_or(!chat->continue_final_message);
  if (chat->continue_final_message && chat->add_generation_prompt) {
    body.Refuse("add_generation_prompt", "must be false with \"continue_final_message\": true");
  }
  ParseTemplateArguments(body, "reasoning_effort", body.String("reasoning_effort"), chat);
  ParseVerbosity(body, chat);
}

}  // namespace outrider::openai
