// The answers of /generate and /inference/v1/generate: token ids, no text.
#pragma once

#include <cstddef>
#include <string>

#include "outrider/openai/choices_writer.h"

namespace outrider::openai {

class TokenWriter : public ChoicesWriter {
 public:
  /// `encoder` must outlive the writer.
  TokenWriter(AnswerInfo info, const PromptEncoder& encoder);

 protected:
  void WriteChoice(size_t index, const OutputDelta& delta, std::string* out) override;
  std::string WholeChoice(size_t index, const OutputDelta& whole) override;
  std::string WholeMembers() override;
};

}  // namespace outrider::openai
