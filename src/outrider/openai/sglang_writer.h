// The answers of /generate in SGLang's shape: text, output_ids and meta_info for each choice. In a
// stream each event has all of the answer so far.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "outrider/openai/answer_writer.h"
#include "outrider/openai/choices_writer.h"

namespace outrider::openai {

class SglangWriter : public AnswerWriter {
 public:
  /// `encoder` must outlive the writer.
  SglangWriter(AnswerInfo info, const PromptEncoder& encoder);

  bool streams() const override { return info_.options.stream; }
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  void WriteEnd(std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 private:
  std::string AnswerJson(size_t choice, const OutputDelta& so_far,
                         const std::vector<PositionLogprobs>& prompt) const;
  std::string LogprobMembers(size_t choice, const OutputDelta& so_far,
                             const std::vector<PositionLogprobs>& prompt) const;
  std::string Entry(const TokenLogprob& token) const;
  std::string Entries(const std::vector<PositionLogprobs>& positions, size_t first) const;
  std::string TopEntries(const std::vector<PositionLogprobs>& positions, size_t first) const;

  const AnswerInfo info_;
  const PromptEncoder& encoder_;
  std::vector<OutputDelta> so_far_;  // of each choice of a stream
};

}  // namespace outrider::openai
