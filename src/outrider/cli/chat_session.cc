#include "outrider/cli/chat_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/cli/generate_request.h"
#include "outrider/cli/remote_chat.h"
#include "outrider/options/option_table.h"
#include "outrider/options/option_value.h"
#include "outrider/output/output_format.h"

namespace outrider::cli {

namespace {

constexpr std::string_view kHelp =
    "/help             this list\n"
    "/reset            forget the conversation\n"
    "/system TEXT      set the system message, and begin anew; without TEXT: remove it\n"
    "/set NAME VALUE   set a sampling option of `outrider chat --help`, such as temperature 0.7\n"
    "/stats            what the answers took so far\n"
    "/quit             leave, as Ctrl-D does\n"
    "Ctrl-C ends an answer. A line that ends with \\ goes on in the next one.\n";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The first word, and what follows it.
std::pair<std::string_view, std::string_view> CutWord(std::string_view text) {
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  return {text.substr(0, end), Trimmed(text.substr(end))};
}

/// The options that /set takes.
std::vector<std::string> SamplingNames() {
  std::vector<std::string> names;
  for (const OptionRow& row : OptionTable()) {
    if (row.group == "Sampling" && row.commands.Has(Command::kChat)) names.push_back(row.name);
  }
  return names;
}

}  // namespace

ChatSession::ChatSession(Settings settings, openai::SamplingDefaults defaults)
    : settings_(std::move(settings)), defaults_(defaults) {}

ChatReply ChatSession::RunCommand(std::string_view line) {
  const auto [command, arguments] = CutWord(Trimmed(line));
  if (command == "/help") return {.text = std::string(kHelp)};
  if (command == "/stats") return {.text = Stats()};
  if (command == "/set") return {.text = Set(arguments)};
  if (command == "/quit") return {.text = "", .quit = true};
  if (command == "/reset") {
    messages_.clear();
    return {.text = "The conversation is forgotten.\n"};
  }
  if (command == "/system") {
    messages_.clear();
    settings_.generate.system.reset();
    if (!arguments.empty()) settings_.generate.system = std::string(arguments);
    return {.text = arguments.empty()
                        ? "There is no system message; the conversation begins anew.\n"
                        : "The system message is set; the conversation begins anew.\n"};
  }
  static const std::vector<std::string> kCommands = {"/help", "/reset", "/system",
                                                     "/set",  "/stats", "/quit"};
  return {.text = fmt::format("unknown command {}{}; /help lists them\n", command,
                              Suggestion(command, kCommands))};
}

std::string ChatSession::Set(std::string_view arguments) {
  const auto [name, value] = CutWord(arguments);
  const std::vector<std::string> names = SamplingNames();
  const OptionRow* const row = FindOption(Command::kChat, name);
  if (row == nullptr || row->group != "Sampling") {
    const std::string hint = name.empty() ? "" : Suggestion(name, names);
    return fmt::format("/set {}: not one of {}{}\n", name, fmt::join(names, ", "), hint);
  }
  if (value.empty()) return fmt::format("/set {} needs a value\n", row->name);
  Settings changed = settings_;
  try {
    row->set(changed, {.where = fmt::format("/set {}", row->name), .texts = {std::string(value)}});
  } catch (const Error& error) {
    return fmt::format("{}\n", error.what());
  }
  settings_ = std::move(changed);
  return fmt::format("{} is {}\n", row->name, value);
}

std::string ChatSession::MessagesWith(std::string_view message) {
  messages_.emplace_back("user", message);
  nlohmann::json messages = nlohmann::json::array();
  if (settings_.generate.system) {
    messages.push_back({{"role", "system"}, {"content", *settings_.generate.system}});
  }
  for (const auto& [role, content] : messages_) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  // A terminal may give invalid UTF-8, which JSON cannot hold.
  return messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

openai::TokenRequest ChatSession::Ask(std::string_view message) {
  openai::TokenRequest request = SampledRequest(settings_.generate, defaults_);
  request.answer.chat = true;
  request.chat.messages_json = MessagesWith(message);
  return request;
}

std::string ChatSession::AskServer(std::string_view message, const std::string& name) {
  return ChatBody(settings_.generate, MessagesWith(message), name);
}

void ChatSession::Answered(const OutputDelta& answer) {
  std::string_view text = answer.text;
  if (const size_t end = text.rfind(kReasoningEnd); end != std::string_view::npos) {
    text.remove_prefix(end + kReasoningEnd.size());
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  }
  ++answers_;
  completion_tokens_ += answer.stats.completion_tokens;
  seconds_ += answer.stats.total_seconds;
  speculation_.num_drafts += answer.stats.speculation.num_drafts;
  speculation_.num_draft_tokens += answer.stats.speculation.num_draft_tokens;
  speculation_.num_accepted_tokens += answer.stats.speculation.num_accepted_tokens;
  if (text.empty()) {
    Withdraw();
  } else {
    messages_.emplace_back("assistant", text);
  }
}

void ChatSession::Withdraw() {
  if (!messages_.empty() && messages_.back().first == "user") messages_.pop_back();
}

std::string ChatSession::Stats() const {
  std::string text = fmt::format("{} answer{}, {} tokens in {:.2f} s", answers_,
                                 answers_ == 1 ? "" : "s", completion_tokens_, seconds_);
  if (speculation_.num_drafts > 0) {
    text += fmt::format("; {} of {} drafts accepted, acceptance length {:.2f}",
                        speculation_.num_accepted_tokens, speculation_.num_draft_tokens,
                        speculation_.MeanAcceptanceLength());
  }
  return text + fmt::format("; {} messages in the conversation\n", messages_.size());
}

}  // namespace outrider::cli
