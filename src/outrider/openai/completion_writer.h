// The answers of /v1/completions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "outrider/openai/choices_writer.h"

namespace outrider::openai {

class CompletionWriter : public ChoicesWriter {
 public:
  /// `encoder` must outlive the writer.
  CompletionWriter(AnswerInfo info, const PromptEncoder& encoder);

  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 protected:
  void WriteChoice(size_t index, const OutputDelta& delta, std::string* out) override;
  std::string WholeChoice(size_t index, const OutputDelta& whole) override;

 private:
  struct Choice {
    bool started = false;  // an event was written
    bool echoed = false;   // the prompt is in the text
    int64_t text_offset = 0;
  };

  std::string ChoiceJson(size_t index, const OutputDelta& delta);
  std::string LogprobsJson(size_t index, const OutputDelta& delta, bool first);
  void Echo(size_t index, OutputDelta* delta);
  const EchoedPrompt& EchoOf(size_t index) const;

  std::vector<Choice> choices_;
};

}  // namespace outrider::openai
