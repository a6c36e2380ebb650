// An engine for server tests: no model, one thread, steps of given length. A request's output
// repeats its prompt's tokens in a circle until max_tokens; token 46 ('.') ends it with "stop".
// Each token has the log-probability -0.5; each prompt token -0.25 and rank 7, 'x' being likelier.
// Drafts that are wrong are 'w'; each running request makes 1 decode row and its drafts' rows.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "outrider/engine/generation_service.h"
#include "outrider/text/prompt_encoder.h"
#include "outrider/text/utf8.h"

namespace outrider {

/// A token is a byte; 256 is BOS, 257 begins the assistant's turn. Vocabulary of 300.
class BytePromptEncoder : public PromptEncoder {
 public:
  std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const override;
  /// The last message's content: content, 257. The text is the content alone.
  EncodedChat EncodeChat(const ChatPrompt& chat) const override;
  bool SupportsTools() const override { return true; }
  std::string TokenizerInfoJson() const override { return R"({"bos_token":"<bos>"})"; }
  std::string TokenBytes(int32_t token_id) const override;
  bool IsSpecial(int32_t token_id) const override { return token_id >= 256; }
  std::optional<int32_t> AddedToken(std::string_view) const override { return std::nullopt; }
  std::optional<size_t> LongestTokenBytes() const override { return 1; }
  int32_t vocab_size() const override { return 300; }
};

struct StubOptions {
  int32_t tokens_per_step = 1;  // more than one looks like accepted drafts
  std::chrono::microseconds step_time{0};
  std::optional<size_t> max_requests = std::nullopt;  // more at a time are refused
  bool refuses_late = false;  // CheckRoom finds room always, as when another request comes between
  std::optional<int64_t> fail_after = std::nullopt;   // tokens after which requests end by kError
  std::string failure = std::string(kGrammarFailed);  // their stop reason
  int32_t scored_wait_steps = 0;                      // that requests with prompt_logprobs are late
  bool held = false;                                  // no step runs before Release
};

class StubGenerationService : public GenerationService {
 public:
  explicit StubGenerationService(StubOptions options);
  ~StubGenerationService() override;

  RequestId Submit(GenerationRequest request, OutputSink sink) override;
  void CheckRoom(int64_t count) const override;
  void Abort(RequestId id) override;
  EngineCounters Counters() const override;
  /// From now on the engine counts as failed.
  void Fail();
  StepLog& step_log() override { return step_log_; }
  /// No step runs between Pause and Resume; with kWait, done is called at Resume at the latest.
  void Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done) override;
  void Resume(std::function<void()> done) override;
  void ForgetPrefixes(std::function<void()> done) override;
  /// A folder called "bad" is refused.
  void UpdateWeights(WeightUpdate update, ControlDone done) override;
  void Sleep(EngineMemory memory, PauseMode mode, ControlDone done) override;
  void WakeUp(EngineMemory memory, ControlDone done) override;

  /// "abort prefixes", "keep", ...: what it was asked for.
  std::vector<std::string> controls() const;

  /// Lets steps run.
  void Release();

  /// Requests that were aborted while they ran.
  int64_t num_aborted() const { return num_aborted_; }
  size_t num_running() const;
  /// Requests that asked for the log-probabilities of their prompt.
  int64_t num_scored_prompts() const { return num_scored_prompts_; }
  /// The sampling parameters of the request submitted last.
  SamplingParams last_sampling() const;
  /// Its cache salt.
  std::string last_cache_salt() const;
  /// Its grammar.
  GrammarConstraint last_grammar() const;

 private:
  struct Request {
    int32_t wait_steps = 0;
    GenerationRequest request;
    OutputSink sink;
    std::chrono::steady_clock::time_point submitted;
    RequestStats stats;
    Utf8Stream text;
    bool aborted = false;
  };

  void Run();
  void RefuseTooMany(int64_t count) const;
  OutputDelta Step(Request& request) const;

  const StubOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Request> running_;
  std::vector<std::pair<RequestId, Request>> added_;
  std::vector<RequestId> to_abort_;
  EngineCounters counters_;
  StepLog step_log_;
  SamplingParams last_sampling_;
  std::string last_cache_salt_;
  GrammarConstraint last_grammar_;
  std::vector<std::string> controls_;
  bool paused_ = false;
  bool failed_ = false;
  RequestId next_id_ = 1;
  bool stopping_ = false;
  bool held_;
  std::atomic<int64_t> num_aborted_{0};
  std::atomic<int64_t> num_scored_prompts_{0};
  std::atomic<size_t> num_running_{0};
  std::thread thread_;
};

}  // namespace outrider
