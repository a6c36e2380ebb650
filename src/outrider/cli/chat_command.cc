#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <string>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/cli/chat_session.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/generation_report.h"
#include "outrider/cli/generation_run.h"
#include "outrider/cli/interrupt.h"
#include "outrider/cli/line_reader.h"
#include "outrider/cli/remote_chat.h"
#include "outrider/generate/model_defaults.h"
#include "outrider/text/text_prompt_encoder.h"

namespace outrider::cli {

namespace {

/// A message: lines, joined while they end with a backslash.
LineResult NextMessage(LineReader& reader, const InterruptFlag& interrupt, bool prompts,
                       std::string* message) {
  message->clear();
  std::string line;
  for (bool more = false;; more = true) {
    if (prompts) std::cout << (more ? ". " : "> ") << std::flush;
    const LineResult result = reader.Next(interrupt.interrupted(), &line);
    if (result == LineResult::kEnd && more) return LineResult::kLine;
    if (result != LineResult::kLine) return result;
    const bool goes_on = line.ends_with('\\');
    if (goes_on) line.back() = '\n';
    *message += line;
    if (!goes_on) return LineResult::kLine;
  }
}

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\n") == std::string::npos;
}

/// Answers a message: calls the function with each piece of text. Throws Error where it cannot.
using Answerer = std::function<OutputDelta(const std::string& message,
                                           const std::function<void(std::string_view)>& on_text,
                                           const std::atomic<bool>& interrupted)>;

/// Talks until the input ends. Returns the program's status.
int Converse(ChatSession& session, const Answerer& answer_to) {
  const bool prompts = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  if (prompts) std::cout << "/help lists the commands, Ctrl-D leaves.\n";

  InterruptFlag interrupt(InterruptFlag::Second::kSetsTheFlag);
  LineReader reader(STDIN_FILENO);
  std::string message;
  for (bool was_interrupted = false;;) {
    interrupt.Clear();
    const LineResult result = NextMessage(reader, interrupt, prompts, &message);
    if (result == LineResult::kEnd) break;
    if (result == LineResult::kInterrupted) {
      std::cout << '\n' << std::flush;
      if (was_interrupted) return 130;
      was_interrupted = true;
      if (prompts) std::cout << "Ctrl-C again, or /quit, leaves.\n" << std::flush;
      continue;
    }
    was_interrupted = false;
    if (IsBlank(message)) continue;
    if (message.starts_with('/')) {
      const ChatReply reply = session.RunCommand(message);
      std::cout << reply.text << std::flush;
      if (reply.quit) return 0;
      continue;
    }
    try {
      const OutputDelta answer = answer_to(
          message, [](std::string_view text) { std::cout << text << std::flush; },
          interrupt.interrupted());
      std::cout << '\n' << std::flush;
      if (answer.finish_reason == FinishReason::kError) {
        SPDLOG_ERROR("the request failed: {}", std::get<std::string>(answer.stop_reason));
        return 1;
      }
      session.Answered(answer);
      PrintLine(spdlog::level::info, FiguresLine(answer));
      FlushLog();  // before the next prompt
    } catch (const Error& error) {
      // A script must notice that nobody answers; at a terminal the server may come back.
      if (error.code() == ErrorCode::kUnavailable && !prompts) throw;
      // Too long a conversation, or values that do not go together: say it, and go on.
      session.Withdraw();
      PrintLine(spdlog::level::err, fmt::format("error: {}", error.what()));
      FlushLog();
    }
  }
  if (prompts) std::cout << '\n';
  return 0;
}

int ChatWithServer(const Settings& settings) {
  RemoteChat server(settings.chat);
  ChatSession session(settings, {});
  return Converse(session, [&](const std::string& message, const auto& on_text,
                               const std::atomic<bool>& interrupted) {
    return server.Answer(session.AskServer(message, settings.engine.model), on_text, interrupted);
  });
}

}  // namespace

int RunChat(const Settings& settings) {
  if (!settings.chat.url.empty()) return ChatWithServer(settings);
  EngineOptions engine = settings.engine;
  engine.max_num_seqs = 1;  // nothing is made or measured for more requests than this one
  const LoadedEngine loaded =
      LoadWithProgress(engine, StandardErrorStyle(settings.log_format, ProgressStyle::kNone));
  if (loaded.chat_template) loaded.chat_template->Check();
  const std::unique_ptr<PromptEncoder> encoder = MakeRequestEncoder(loaded);
  encoder->EncodeChat(
      ConversationOf("", nullptr));  // throws where the model knows no conversations
  // The text is printed as it comes: nothing is told apart in it.
  Generator generator(*loaded.engine, *encoder, loaded.grammars.get(), OutputFormat(),
                      loaded.engine->max_model_len());
  ChatSession session(settings, ModelSamplingDefaults(loaded.config));
  return Converse(session, [&](const std::string& message, const auto& on_text,
                               const std::atomic<bool>& interrupted) {
    return RunGeneration(
        generator, session.Ask(message), [&] { loaded.engine->Step(); }, on_text, interrupted);
  });
}

}  // namespace outrider::cli
