// Answers of a server that runs already, for `outrider chat --url`.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "outrider/engine/generation.h"
#include "outrider/http/http_address.h"
#include "outrider/http/http_post_client.h"
#include "outrider/options/settings.h"

namespace outrider::cli {

/// The body of a streamed chat completion: `messages_json`, the sampling values that `settings`
/// has, and `model`, the name to ask for ("": the server's only one).
std::string ChatBody(const GenerateSettings& settings, const std::string& messages_json,
                     const std::string& model);

/// What a stream's events add up to.
class ChatStream {
 public:
  /// Each piece of text goes to `on_text`; reasoning between <think> and </think>.
  explicit ChatStream(std::function<void(std::string_view)> on_text)
      : on_text_(std::move(on_text)) {}

  /// Takes a piece of the answer's body as it comes. Throws Error when the server says that the
  /// request failed, or is no such server.
  void Take(int status, std::string_view piece, bool end);

  /// The answer so far: its text without reasoning, tokens and acceptance as the server counted.
  const OutputDelta& answer() const { return answer_; }
  bool complete() const { return complete_; }

 private:
  void TakeEvent(std::string_view data);
  void Show(bool reasoning, const std::string& text);

  std::function<void(std::string_view)> on_text_;
  std::string rest_;  // of the body, not taken in yet
  bool in_reasoning_ = false;
  bool complete_ = false;
  OutputDelta answer_;
};

class RemoteChat {
 public:
  /// Throws Error, naming --url or --api-key, for what is no address or no key.
  explicit RemoteChat(const ChatSettings& settings);

  /// Sends `body` and returns the whole answer, of what came when `interrupted` becomes true.
  /// Throws Error (kUnavailable when the server cannot be reached or breaks off).
  OutputDelta Answer(const std::string& body, const std::function<void(std::string_view)>& on_text,
                     const std::atomic<bool>& interrupted);

 private:
  const std::string url_;
  const std::string api_key_;
  const HttpAddress address_;
  HttpPostClient client_;
};

}  // namespace outrider::cli
