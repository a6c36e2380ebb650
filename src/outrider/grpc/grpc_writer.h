// The answers of vllm.Inference: serialized GenerateResponses, as frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "outrider/openai/answer_writer.h"
#include "outrider/openai/choices_writer.h"
#include "outrider/text/prompt_encoder.h"

namespace vllm {
class PromptInfo;
class SequenceOutput;
}  // namespace vllm

namespace outrider {

class GrpcWriter : public openai::AnswerWriter {
 public:
  /// One prompt. `encoder` must outlive the writer.
  GrpcWriter(openai::AnswerInfo info, const PromptEncoder& encoder);

  bool streams() const override { return info_.options.stream; }
  void WriteStart(std::string* out) override;
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  /// The prompt's log-probabilities come with the first choice.
  bool MustWait(size_t choice) const override { return choice > 0 && !prompt_told_; }
  void WriteEnd(std::string* /*out*/) override {}
  void WriteError(const openai::ApiError& error, std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 private:
  void FillPrompt(const OutputDelta& delta, vllm::PromptInfo* prompt) const;
  void FillOutput(size_t choice, const OutputDelta& delta, vllm::SequenceOutput* output);

  const openai::AnswerInfo info_;
  const PromptEncoder& encoder_;
  bool prompt_told_ = false;
  std::vector<uint32_t> num_tokens_;  // of each choice so far
};

}  // namespace outrider
