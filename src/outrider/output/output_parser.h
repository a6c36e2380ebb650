// Tells the parts of a model's text apart: reasoning, content, tool calls. Works on text alone, so
// the result does not depend on how many tokens come at once or how the text was cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/held_text.h"
#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"
#include "outrider/output/tool_call_reader.h"
#include "outrider/output/value_types.h"

namespace outrider {

/// What to tell apart in the text of one request.
struct OutputTask {
  bool reasoning = false;
  bool reasoning_open = false;        // the prompt ends within the reasoning
  const ToolFormat* tools = nullptr;  // null: tool calls are content
  FunctionTypes types = {};           // of the functions' parameters
  // What of that the client wants to see.
  bool show_reasoning = true;
  bool one_call = false;  // calls after the first are left out
  /// Marks that are special tokens, which the text has though it has no others.
  std::vector<int32_t> kept_special_tokens = {};
};

/// A stretch of a model's text, whatever became of it.
struct OutputRun {
  enum class Part : uint8_t {
    kReasoning,  // with the marks around it
    kContent,
    kOther,  // calls, their marks, line ends after reasoning
  };

  Part part;
  size_t bytes;

  bool operator==(const OutputRun&) const = default;
};

/// Text that is no well-formed tool call stays what it stands in; a call that the text's end cuts
/// off stays cut off. Line ends around reasoning and space around tool calls belong to neither
/// side. Reasoning comes first, and again where nothing but space is between it and earlier
/// reasoning or a call.
class OutputParser {
 public:
  using TextEnd = ToolCallReader::TextEnd;

  /// `task` must outlive the parser.
  explicit OutputParser(const OutputTask& task);

  /// Appends what became certain with this text, whole characters of UTF-8.
  void Push(std::string_view text, std::vector<OutputPiece>* pieces);
  /// The text has ended: appends the rest.
  void Finish(TextEnd end, std::vector<OutputPiece>* pieces);

  /// The text that became certain since the last time, in order and without gaps. After Finish all
  /// of the text has been told.
  std::vector<OutputRun> TakeRuns();

  /// No more of the text can be reasoning.
  bool reasoning_over() const {
    return task_.tools == nullptr && state_ == State::kContent && !at_boundary_;
  }
  /// After Finish: the text ended within a call.
  bool call_cut_off() const { return call_cut_off_; }

 private:
  enum class State : uint8_t { kStart, kReasoningStart, kReasoning, kContent, kCall };
  enum class Boundary : uint8_t { kNeedsMore, kReasoning, kContent };

  void Run(bool final, std::vector<OutputPiece>* pieces);
  bool Step(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  bool Start(std::string_view* text, bool final);
  bool Reasoning(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  bool Content(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  Boundary ReadBoundary(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  void BeginCall();
  bool Call(std::string_view* text, bool final, std::vector<OutputPiece>* pieces);
  void EndReasoning();
  void AddReasoning(std::string_view text, std::vector<OutputPiece>* pieces);
  void AddContent(std::string_view text, std::vector<OutputPiece>* pieces);
  void SetDistinctId(OutputPiece* call);
  void Count(OutputRun::Part part, size_t bytes);

  const OutputTask& task_;
  State state_;
  std::string pending_;  // text that waits for what follows it
  std::string reread_;   // what was taken for a call and is none, with all that follows
  HeldText reasoning_;
  HeldText content_;
  bool has_reasoning_ = false;
  bool reasoning_unended_ = false;  // a call ended it, its own mark may come yet
  bool after_reasoning_ = false;    // line ends here belong to no part
  bool after_call_ = false;         // nor does space here
  bool at_boundary_ = false;        // reasoning may begin again
  std::unique_ptr<ToolCallReader> call_;
  bool call_begun_ = false;   // its header was read
  bool call_within_ = false;  // it stands in reasoning
  size_t uncounted_ = 0;      // bytes of the call that are in no run yet
  bool call_cut_off_ = false;
  std::set<std::string> call_ids_;
  std::vector<OutputRun> runs_;
};

}  // namespace outrider
