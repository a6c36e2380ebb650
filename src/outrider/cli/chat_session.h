// What `outrider chat` keeps between lines: the conversation, the sampling values and what the
// answers took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/openai/request.h"
#include "outrider/options/settings.h"

namespace outrider::cli {

/// What a line that begins with / leads to.
struct ChatReply {
  std::string text;   // to print, with its line end
  bool quit = false;  // the program ends
};

class ChatSession {
 public:
  /// `settings`: as the command line has them; `defaults`: the model's.
  ChatSession(Settings settings, openai::SamplingDefaults defaults);

  /// Runs /help, /reset, /system, /set, /stats or /quit. What is wrong with a command is said in
  /// the reply, and changes nothing.
  ChatReply RunCommand(std::string_view line);

  /// The request for an answer to `message`, behind all that was said.
  openai::TokenRequest Ask(std::string_view message);

  /// Ask, as a body for a server that answers for the model `name` (RemoteChat).
  std::string AskServer(std::string_view message, const std::string& name);

  /// Keeps the answer to the last Ask. Reasoning, up to the last </think>, is not repeated to the
  /// model; a question whose answer has no text is forgotten.
  void Answered(const OutputDelta& answer);

  /// Forgets the last question, which gets no answer.
  void Withdraw();

 private:
  /// The conversation with `message` at its end, as chat completions take it.
  std::string MessagesWith(std::string_view message);
  std::string Set(std::string_view arguments);
  std::string Stats() const;

  Settings settings_;
  const openai::SamplingDefaults defaults_;
  std::vector<std::pair<std::string, std::string>> messages_;  // role and content, in turns
  int64_t answers_ = 0;
  int64_t completion_tokens_ = 0;
  double seconds_ = 0;             // of all answers, from question to last token
  SpeculationCounts speculation_;  // of all answers, without places
};

}  // namespace outrider::cli
