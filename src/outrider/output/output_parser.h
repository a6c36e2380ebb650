// Tells the parts of a model's text apart: reasoning, content, tool calls. Works on text alone, so
// the result does not depend on how many tokens come at once or how the text was cut.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/held_text.h"
#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"
#include "outrider/output/tool_call_reader.h"

namespace outrider {

/// What to tell apart in the text of one request.
struct OutputTask {
  bool reasoning = false;
  bool reasoning_open = false;        // the prompt ends within the reasoning
  const ToolFormat* tools = nullptr;  // null: tool calls are content
  StringParameters string_parameters = {};
  // What of that the client wants to see.
  bool show_reasoning = true;
  bool one_call = false;  // calls after the first are left out
  /// Marks that are special tokens, which the text has though it has no others.
  std::vector<int32_t> kept_special_tokens = {};
};

/// Text that is no well-formed tool call stays content; a call that the text's end cuts off stays
/// cut off. Line ends around reasoning and space around tool calls belong to neither side.
class OutputParser {
 public:
  /// `task` must outlive the parser.
  explicit OutputParser(const OutputTask& task);

  /// Appends what became certain with this text, whole characters of UTF-8.
  void Push(std::string_view text, std::vector<OutputPiece>* pieces);
  /// The text has ended: appends the rest.
  void Finish(std::vector<OutputPiece>* pieces);

  /// How many bytes of the text are reasoning, the marker that ends it included, as far as known.
  int64_t reasoning_bytes() const { return reasoning_bytes_; }
  /// No more of the text can be reasoning.
  bool reasoning_over() const { return state_ == State::kContent || state_ == State::kCall; }

 private:
  enum class State : uint8_t { kStart, kReasoningStart, kReasoning, kContent, kCall };

  void Run(bool final, std::vector<OutputPiece>* pieces);
  bool Step(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  bool Start(std::string_view* text, bool final);
  bool Reasoning(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  bool Content(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  bool Call(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  void AddContent(std::string_view text, std::vector<OutputPiece>* pieces);

  const OutputTask& task_;
  State state_;
  std::string pending_;  // text that waits for what follows it
  HeldText reasoning_;
  HeldText content_;
  bool after_reasoning_ = false;  // line ends here belong to no part
  bool after_call_ = false;       // nor does space here
  std::unique_ptr<ToolCallReader> call_;
  int64_t taken_bytes_ = 0;
  int64_t reasoning_bytes_ = 0;
};

}  // namespace outrider
