// What the answers of /v1/completions, /v1/chat/completions and /generate have in common: objects
// and chunks with `choices`, `usage` and `metrics`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outrider/openai/answer_totals.h"
#include "outrider/openai/answer_writer.h"
#include "outrider/openai/request.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// A prompt as the answer repeats it.
struct EchoedPrompt {
  std::string text;
  std::vector<int32_t> token_characters;  // how many characters of the text each token stands for
};

struct AnswerInfo {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  AnswerOptions options;
  int32_t n = 1;                              // choices per prompt
  std::vector<std::vector<int32_t>> prompts;  // choice i answers prompt i / n
  std::vector<EchoedPrompt> echoed_prompts;   // completions, to echo: one per prompt
};

class ChoicesWriter : public AnswerWriter {
 public:
  bool streams() const override { return info_.options.stream; }
  bool MustWait(size_t choice) const override;
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  void WriteEnd(std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 protected:
  /// What objects say they are: whole answers, and chunks of streams.
  struct ObjectNames {
    const char* whole;
    const char* chunk;
  };

  /// `encoder` must outlive the writer.
  ChoicesWriter(AnswerInfo info, const PromptEncoder& encoder, ObjectNames names);

  /// Appends the events of a delta, which is counted already.
  virtual void WriteChoice(size_t index, const OutputDelta& delta, std::string* out) = 0;
  /// A choice of a whole answer, counted already.
  virtual std::string WholeChoice(size_t index, const OutputDelta& whole) = 0;
  /// Further members of `usage`, each with a comma before it.
  virtual std::string UsageDetails() const { return ""; }
  /// Further members of a whole answer, each with a comma before it.
  virtual std::string WholeMembers() { return ""; }

  const AnswerInfo& info() const { return info_; }
  const AnswerOptions& options() const { return info_.options; }
  const PromptEncoder& encoder() const { return encoder_; }
  const std::vector<int32_t>& PromptOf(size_t index) const;
  /// Log-probabilities of the prompt of choice `index`, whichever of its choices had them computed.
  std::span<const PositionLogprobs> PromptLogprobsOf(size_t index) const;
  /// The prompt's log-probabilities as JSON, which is made once per prompt.
  const std::string& PromptLogprobsText(size_t index);

  /// Whether a delta without text has something else to tell.
  bool TellsTokens(const OutputDelta& delta) const;
  /// Last members of a choice, each with a comma before it: its steps, when asked for, and, with
  /// its end, the version of the weights, where they have one, and the experts.
  std::string LastChoiceMembers(const OutputDelta& delta) const;

  /// Appends a chunk. `extra`: further members of the object, each with a comma before it.
  void WriteChunk(const std::string& choices, const std::string& extra, std::string* out) const;
  /// What the last chunk with a choice carries more than the others.
  std::string LastMembers() const;

 private:
  // The engine scores a prompt for its first choice only.
  struct ScoredPrompt {
    bool done = false;  // its first choice has given what it will
    std::vector<PositionLogprobs> logprobs = {};
    std::string json = {};
  };

  bool IsFirstOfPrompt(size_t choice) const { return choice % static_cast<size_t>(info_.n) == 0; }
  ScoredPrompt& ScoredOf(size_t choice) { return scored_[choice / static_cast<size_t>(info_.n)]; }
  void TakeScores(size_t choice, const OutputDelta& delta);
  std::string UsageJson() const { return totals_.UsageJson(UsageDetails()); }
  std::string MetricsMember() const;

  AnswerInfo info_;
  const PromptEncoder& encoder_;
  std::string head_;  // of every object: {"id":...,"model":...,"choices":[
  AnswerTotals totals_;
  std::vector<ScoredPrompt> scored_;  // by prompt
};

/// Members that tell which weights drew the tokens, each with a comma before it: of a delta that
/// ends a choice, where the weights have a name.
std::string WeightMembers(const OutputDelta& delta);

// Members of a choice.
std::string StopReasonJson(const OutputDelta& delta);
std::string IdsJson(const std::vector<int32_t>& ids);

}  // namespace outrider::openai
