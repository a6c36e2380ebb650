// Turns a request's output into OpenAI bodies: server-sent events while tokens come, or one object
// at the end. Knows nothing of HTTP or the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/server/openai/request.h"
#include "outrider/server/prompt_encoder.h"

namespace outrider::openai {

struct AnswerInfo {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  AnswerOptions options;
  int32_t n = 1;                              // choices per prompt
  std::vector<std::vector<int32_t>> prompts;  // choice i answers prompt i / n
  std::vector<std::string> prompt_texts;      // to echo: one per prompt
};

class AnswerWriter {
 public:
  /// `encoder` must outlive the writer.
  AnswerWriter(AnswerInfo info, const PromptEncoder& encoder);

  /// Streaming: appends the events of one delta, possibly none.
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out);
  /// Streaming: appends what follows the last delta of the last choice.
  void WriteEnd(std::string* out);

  /// Not streaming: takes a delta in; Body is called after the last one.
  void Collect(size_t choice, OutputDelta delta);
  std::string Body();

  const AnswerOptions& options() const { return info_.options; }

 private:
  struct Choice {
    bool started = false;  // an event was written
    bool echoed = false;   // the prompt is in the text
    int64_t completion_tokens = 0;
    int64_t text_offset = 0;
    RequestStats stats;  // of the last delta
    OutputDelta whole;   // Collect
  };

  std::string ChoiceJson(size_t index, const OutputDelta& delta, bool chunk, bool first);
  std::string LogprobsJson(size_t index, const OutputDelta& delta, bool first);
  const std::vector<int32_t>& PromptOf(size_t index) const;
  void Echo(size_t index, OutputDelta* delta);
  void WriteEvents(size_t index, const OutputDelta& delta, std::string* out);
  std::string UsageJson() const;
  std::string MetricsMember() const;
  void Count(size_t index, const OutputDelta& delta);
  void WriteEvent(const std::string& choices, const std::string& extra, std::string* out);

  AnswerInfo info_;
  const PromptEncoder& encoder_;
  std::string head_;  // of every object: {"id":...,"model":...,"choices":[
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
};

/// One event that carries an error, for streams whose head was sent already.
std::string ErrorEvent(const std::string& error_json);

}  // namespace outrider::openai
