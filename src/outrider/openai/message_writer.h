// The answers of /v1/messages: a message of content blocks (thinking, text, tool_use), as one
// object or as events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/openai/answer_totals.h"
#include "outrider/openai/answer_writer.h"
#include "outrider/openai/choices_writer.h"
#include "outrider/output/output_parser.h"
#include "outrider/output/output_reader.h"

namespace outrider::openai {

class MessageWriter : public AnswerWriter {
 public:
  /// `info` has one prompt and one choice. `encoder` must outlive the writer.
  MessageWriter(AnswerInfo info, OutputTask task, const PromptEncoder& encoder);
  // Its reader refers to its task.
  MessageWriter(const MessageWriter&) = delete;
  MessageWriter& operator=(const MessageWriter&) = delete;

  bool streams() const override { return info_.options.stream; }
  void WriteStart(std::string* out) override;
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  void WriteEnd(std::string* /*out*/) override {}
  void WriteError(const ApiError& error, std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 private:
  struct Block {
    OutputPiece::Kind kind;  // kReasoning, kContent or kToolCall
    std::string text = {};   // reasoning, content or arguments
    std::string function = {};
    std::string call_id = {};
  };

  void Begin(const OutputPiece& piece, std::string* out);
  void Add(const std::string& text, std::string* out);
  /// Ends the open block. `whole`: it was not cut off.
  void End(bool whole, std::string* out);
  void Take(const OutputDelta& delta, std::string* out);
  std::string StopMembers(const OutputDelta& last) const;
  std::string UsageJson() const;
  std::string HeadMembers() const;
  void WriteEvent(std::string_view type, const std::string& members, std::string* out);

  const AnswerInfo info_;
  const OutputTask task_;
  OutputReader reader_;
  AnswerTotals totals_;
  std::optional<Block> open_;  // the block that goes on
  std::vector<std::string>
      whole_;              // blocks that have ended, as JSON; calls only if they can be run
  size_t num_blocks_ = 0;  // that have begun
  bool has_calls_ = false;
  bool has_bad_calls_ = false;  // which nobody can run
};

}  // namespace outrider::openai
