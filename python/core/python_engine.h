// An engine of the Python package: loaded from keyword arguments, stepped by a thread of its own,
// asked by any number of Python threads. No method needs the interpreter, so all of them run
// without the GIL.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/engine/engine_loader.h"
#include "outrider/engine/engine_thread.h"
#include "outrider/generate/generator.h"
#include "outrider/server/server.h"
#include "python/core/event_queue.h"
#include "python/core/option_texts.h"

namespace outrider::python {

/// A prompt: text, token ids, or nothing, as its request has it (a conversation).
using Prompt = std::variant<std::monostate, std::string, std::vector<int32_t>>;

/// Refuses to work in a process that was forked off after it was made: the threads have stayed
/// behind.
class ProcessCheck {
 public:
  ProcessCheck();
  bool IsOwner() const;
  /// Throws Error (kUnavailable).
  void Require() const;

 private:
  pid_t owner_;
};

class PythonEngine {
 public:
  /// `progress`: bytes of weights read and in all. Throws Error.
  PythonEngine(const OptionTexts& options, const LoadProgress& progress);
  ~PythonEngine();
  PythonEngine(const PythonEngine&) = delete;
  PythonEngine& operator=(const PythonEngine&) = delete;

  /// Ends all requests, then the engine, once the other threads' calls have returned. Every other
  /// call fails afterwards.
  void Stop();

  /// Submits a request to events' reader under the name `request`. `body`: a body of
  /// /v1/completions, whose prompt is replaced by `prompt`, or of /v1/chat/completions. Without
  /// max_tokens, completions fill the context. `whole`: no deltas, but whole answers.
  StartedRequest Submit(const std::shared_ptr<EventQueue>& events, int64_t request,
                        const std::string& body, bool is_chat, Prompt prompt, bool whole);
  /// As Submit, for an answer that is given: text, or token ids.
  StartedRequest Score(const std::shared_ptr<EventQueue>& events, int64_t request,
                       const std::string& body, Prompt prompt, Prompt answer);
  /// Ends all requests whose answers come to `events`.
  void Abort(EventQueue& events);
  void ResetPrefixCache();

  /// All that answers had before the call is counted; waits for the step that runs.
  EngineCounters Counters();
  std::vector<int32_t> Encode(const std::string& text, bool add_special_tokens);
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens);
  /// The prompt of a body of /v1/chat/completions.
  EncodedChat RenderChat(const std::string& body);
  std::string TokenBytes(int32_t id);
  std::string TokenizerInfo();

  const LoadedEngine& loaded() const { return loaded_; }
  int32_t max_model_len() const { return limits_.max_model_len; }
  const openai::RequestLimits& limits() const { return limits_; }

 private:
  /// What runs; null once it was stopped.
  struct Parts;
  /// What runs, which stays until this is gone.
  class Use;
  openai::TokenRequest Parse(const std::string& body, bool is_chat, Prompt prompt) const;

  const ProcessCheck process_;
  LoadedEngine loaded_;
  openai::RequestLimits limits_;
  std::shared_mutex stopping_;  // shared by calls, held alone by Stop
  std::unique_ptr<Parts> parts_;
};

/// An engine behind the HTTP API, for `outrider.serve`.
class PythonServer {
 public:
  PythonServer(const OptionTexts& options, const LoadProgress& progress);
  /// Lets what runs finish for shutdown_timeout.
  ~PythonServer();
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  void Stop();
  uint16_t port() const;

 private:
  struct Parts;

  const ProcessCheck process_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace outrider::python
