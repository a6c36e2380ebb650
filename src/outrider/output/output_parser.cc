#include "outrider/output/output_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/output/marker.h"
#include "outrider/output/white_space.h"

namespace outrider {
namespace {

using Part = OutputRun::Part;

constexpr std::string_view kLineEnds = "\r\n";
// A text that begins with more space than this is content.
constexpr size_t kMaxSpaceBeforeReasoning = 64;

}  // namespace

std::unique_ptr<ToolCallReader> MakeToolCallReader(const ToolFormat& format,
                                                   const FunctionTypes& types) {
  switch (format.arguments) {
    case ArgumentsForm::kKeysAndValues:
      return MakeKeyValueCallReader(format, types);
    case ArgumentsForm::kAttributes:
    case ArgumentsForm::kNamedTags:
      return MakeParameterCallReader(format, types);
    case ArgumentsForm::kJson:
    case ArgumentsForm::kFencedJson:
      break;
  }
  return MakeJsonCallReader(format);
}

OutputParser::OutputParser(const OutputTask& task)
    : task_(task),
      state_(!task.reasoning       ? State::kContent
             : task.reasoning_open ? State::kReasoningStart
                                   : State::kStart),
      reasoning_(OutputPiece::Kind::kReasoning, kLineEnds),
      content_(OutputPiece::Kind::kContent, task.tools == nullptr ? "" : kSpace) {}

void OutputParser::Push(std::string_view text, std::vector<OutputPiece>* pieces) {
  pending_ += text;
  Run(false, pieces);
}

void OutputParser::Finish(TextEnd end, std::vector<OutputPiece>* pieces) {
  Run(true, pieces);
  if (state_ == State::kCall) call_cut_off_ = !call_->Finish(end, pieces);
  // The beginning of a mark at the end of a call.
  Count(Part::kOther, std::exchange(pending_, {}).size());
  reasoning_.Release(pieces);
  if (!after_call_) content_.Release(pieces);
}

std::vector<OutputRun> OutputParser::TakeRuns() { return std::exchange(runs_, {}); }

void OutputParser::Count(Part part, size_t bytes) {
  if (bytes == 0) return;
  if (!runs_.empty() && runs_.back().part == part) {
    runs_.back().bytes += bytes;
  } else {
    runs_.push_back({part, bytes});
  }
}

void OutputParser::Run(bool final, std::vector<OutputPiece>* pieces) {
  std::string_view text = pending_;
  while (Step(&text, final, pieces)) {
    if (reread_.empty()) continue;
    pending_ = std::exchange(reread_, {});
    text = pending_;
  }
  pending_.erase(0, pending_.size() - text.size());
}

// Takes text for one state; false when more of it is needed.
bool OutputParser::Step(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  switch (state_) {
    case State::kStart:
    case State::kReasoningStart:
      return Start(text, final);
    case State::kReasoning:
      return Reasoning(text, final, pieces);
    case State::kContent:
      return Content(text, final, pieces);
    case State::kCall:
      return Call(text, final, pieces);
  }
  OUTRIDER_CHECK(false);
}

// Looks for the mark that begins the reasoning: some models write it though the prompt has it.
bool OutputParser::Start(std::string_view* text, bool final) {
  const size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  const std::string_view rest = text->substr(begin);
  const bool early = state_ == State::kReasoningStart || begin <= kMaxSpaceBeforeReasoning;
  const bool may_begin = rest.size() < kReasoningBegin.size() && kReasoningBegin.starts_with(rest);
  if (state_ == State::kReasoningStart) {
    Count(Part::kReasoning, begin);
    text->remove_prefix(begin);
  }
  if (early && rest.starts_with(kReasoningBegin)) {
    const size_t taken = text->size() - rest.size() + kReasoningBegin.size();
    Count(Part::kReasoning, taken);
    text->remove_prefix(taken);
    state_ = State::kReasoningStart;
    return true;
  }
  if (early && may_begin && !final) return false;
  state_ = state_ == State::kStart ? State::kContent : State::kReasoning;
  return true;
}

bool OutputParser::Reasoning(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  std::array<std::string_view, 3> markers = {kReasoningEnd};
  if (task_.tools != nullptr) {
    markers[1] = task_.tools->call_begin;
    markers[2] = task_.tools->section_begin;
  }
  const MarkerMatch match = FindMarker(*text, markers, final);
  AddReasoning(text->substr(0, match.begin), pieces);
  text->remove_prefix(match.begin);
  if (!match.marker) return false;
  const std::string_view mark = markers[*match.marker];
  if (mark == kReasoningEnd) {
    Count(Part::kReasoning, mark.size());
    text->remove_prefix(mark.size());
    reasoning_unended_ = false;
    EndReasoning();
  } else if (mark == task_.tools->call_begin) {
    // The reasoning goes on if this is no call.
    text->remove_prefix(mark.size());
    call_within_ = true;
    BeginCall();
  } else {
    reasoning_unended_ = true;
    EndReasoning();
  }
  return true;
}

void OutputParser::EndReasoning() {
  reasoning_.Drop();
  after_reasoning_ = true;
  at_boundary_ = true;
  state_ = State::kContent;
}

// Where nothing but space came since reasoning or a call, the model may think again.
OutputParser::Boundary OutputParser::ReadBoundary(std::string_view* text, bool final,
                                                  std::vector<OutputPiece>* pieces) {
  const size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  const std::string_view rest = text->substr(begin);
  if (rest.starts_with(kReasoningBegin)) {
    const size_t taken = begin + kReasoningBegin.size();
    Count(Part::kReasoning, taken);
    text->remove_prefix(taken);
    if (has_reasoning_) reasoning_.Add("\n", pieces);
    state_ = State::kReasoningStart;
    return Boundary::kReasoning;
  }
  if (!final && kReasoningBegin.starts_with(rest)) return Boundary::kNeedsMore;
  at_boundary_ = false;
  return Boundary::kContent;
}

bool OutputParser::Content(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  if (at_boundary_) {
    const Boundary boundary = ReadBoundary(text, final, pieces);
    if (boundary != Boundary::kContent) return boundary == Boundary::kReasoning;
  }
  std::array<std::string_view, 4> markers;
  if (task_.tools != nullptr) {
    markers = {task_.tools->call_begin, task_.tools->section_begin, task_.tools->section_end};
  }
  if (reasoning_unended_) markers[3] = kReasoningEnd;
  const MarkerMatch match = FindMarker(*text, markers, final);
  AddContent(text->substr(0, match.begin), pieces);
  text->remove_prefix(match.begin);
  if (!match.marker) return false;
  const std::string_view mark = markers[*match.marker];
  text->remove_prefix(mark.size());
  if (mark == kReasoningEnd) {
    Count(Part::kReasoning, mark.size());
    if (after_call_) content_.Drop();
    reasoning_unended_ = false;
    after_reasoning_ = true;
    at_boundary_ = true;
  } else if (mark == task_.tools->call_begin) {
    call_within_ = false;
    BeginCall();
  } else {
    Count(Part::kOther, mark.size());
    content_.Drop();
    after_call_ = true;
    at_boundary_ = task_.reasoning;
  }
  return true;
}

void OutputParser::BeginCall() {
  call_ = MakeToolCallReader(*task_.tools, task_.types);
  call_begun_ = false;
  uncounted_ = task_.tools->call_begin.size();
  state_ = State::kCall;
}

bool OutputParser::Call(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  const size_t before = pieces->size();
  const size_t left = text->size();
  const ToolCallReader::Status status = call_->Read(text, final, pieces);
  if (status == ToolCallReader::Status::kMalformed) {
    // The mark is text; what the reader took may hold others.
    state_ = call_within_ ? State::kReasoning : State::kContent;
    if (call_within_) {
      AddReasoning(task_.tools->call_begin, pieces);
    } else {
      AddContent(task_.tools->call_begin, pieces);
    }
    reread_ = call_->taken();
    reread_ += *text;
    return true;
  }
  uncounted_ += left - text->size();
  if (!call_begun_ && pieces->size() > before) {
    call_begun_ = true;
    SetDistinctId(&(*pieces)[before]);
    if (call_within_) {
      reasoning_.Drop();
      reasoning_unended_ = true;
    }
    content_.Drop();
    after_call_ = true;
  }
  if (call_begun_) Count(Part::kOther, std::exchange(uncounted_, 0));
  if (status == ToolCallReader::Status::kNeedsMore) return false;
  at_boundary_ = task_.reasoning;
  state_ = State::kContent;
  return true;
}

// Models number their calls, and sometimes give a number twice: clients tell calls by their ids.
void OutputParser::SetDistinctId(OutputPiece* call) {
  if (call->call_id.empty() || call_ids_.insert(call->call_id).second) return;
  const size_t colon = call->call_id.rfind(':');
  const std::string stem = call->call_id.substr(0, colon);
  for (size_t number = 0;; ++number) {
    call->call_id = fmt::format("{}:{}", stem, number);
    if (call_ids_.insert(call->call_id).second) return;
  }
}

void OutputParser::AddReasoning(std::string_view text, std::vector<OutputPiece>* pieces) {
  Count(Part::kReasoning, text.size());
  has_reasoning_ = has_reasoning_ || !text.empty();
  reasoning_.Add(text, pieces);
}

void OutputParser::AddContent(std::string_view text, std::vector<OutputPiece>* pieces) {
  if (after_reasoning_) {
    const size_t line_ends = std::min(text.find_first_not_of(kLineEnds), text.size());
    Count(Part::kOther, line_ends);
    text.remove_prefix(line_ends);
    after_reasoning_ = text.empty();
  }
  if (!Trimmed(text).empty()) after_call_ = false;
  Count(Part::kContent, text.size());
  content_.Add(text, pieces);
}

}  // namespace outrider
