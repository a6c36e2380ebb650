// The answers of /v1/responses: output items (reasoning, message, function calls), as one object or
// as typed events.
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

class ResponseWriter : public AnswerWriter {
 public:
  /// `info` has one prompt and one choice. `members`: those of the answer that repeat the request,
  /// without braces. `encoder` must outlive the writer.
  ResponseWriter(AnswerInfo info, OutputTask task, std::string members,
                 const PromptEncoder& encoder);
  // Its reader refers to its task.
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  bool streams() const override { return info_.options.stream; }
  void WriteStart(std::string* out) override;
  void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) override;
  void WriteEnd(std::string* /*out*/) override {}
  void WriteError(const ApiError& error, std::string* out) override;
  std::string Body(std::vector<OutputDelta> choices) override;

 private:
  struct Item {
    OutputPiece::Kind kind;  // kReasoning, kContent or kToolCall
    std::string id;
    std::string text;  // reasoning, content or arguments
    std::string function;
    std::string call_id;
  };

  void Begin(const OutputPiece& piece, std::string* out);
  void Add(const std::string& text, std::string* out);
  void End(std::string_view status, std::string* out);
  void Take(const OutputDelta& delta, std::string* out);
  std::string ItemJson(const Item& item, std::string_view status, bool empty) const;
  std::string PartJson(const Item& item, bool empty) const;
  std::string ResponseJson(std::optional<FinishReason> reason) const;
  void WriteEvent(std::string_view type, const std::string& members, std::string* out);
  std::string Place(bool part) const;
  bool IsCustom(const Item& item) const {
    return item.kind == OutputPiece::Kind::kToolCall &&
           info_.options.custom_tools.contains(item.function);
  }

  const AnswerInfo info_;
  const OutputTask task_;
  const std::string members_;
  OutputReader reader_;
  AnswerTotals totals_;
  std::vector<std::string> done_;  // items that have ended, as JSON
  std::optional<Item> open_;       // the item that goes on
  int64_t sequence_number_ = 0;
};

}  // namespace outrider::openai
