// The answers of /v1/chat/completions: messages with content, reasoning and tool calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "outrider/openai/choices_writer.h"
#include "outrider/output/output_parser.h"
#include "outrider/output/output_reader.h"

namespace outrider::openai {

class ChatWriter : public ChoicesWriter {
 public:
  /// `task` says what to tell apart in the text. `encoder` must outlive the writer.
  ChatWriter(AnswerInfo info, OutputTask task, const PromptEncoder& encoder);
  // Its readers refer to its task.
  ChatWriter(const ChatWriter&) = delete;
  ChatWriter& operator=(const ChatWriter&) = delete;

 protected:
  void WriteChoice(size_t index, const OutputDelta& delta, std::string* out) override;
  std::string WholeChoice(size_t index, const OutputDelta& whole) override;
  std::string UsageDetails() const override;
  std::string WholeMembers() override;

 private:
  struct Choice {
    OutputReader reader;
    bool started = false;    // an event was written
    int32_t tool_calls = 0;  // that have begun
  };

  std::string ToolCallsDelta(size_t index, const OutputPiece*& piece, const OutputPiece* end);
  std::vector<std::string> Deltas(size_t index, const std::vector<OutputPiece>& pieces);
  std::string MessageJson(size_t index, const std::vector<OutputPiece>& pieces);
  std::string CallHead(size_t index, const OutputPiece& call);
  std::string ChoiceTail(size_t index, const OutputDelta& delta) const;
  const OutputDelta& Shown(size_t index, const OutputDelta& delta, OutputDelta* own);

  const OutputTask task_;
  std::vector<Choice> choices_;
};

}  // namespace outrider::openai
