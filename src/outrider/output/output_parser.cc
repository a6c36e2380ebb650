#include "outrider/output/output_parser.h"

#include <algorithm>
#include <array>

#include "outrider/output/marker.h"
#include "outrider/output/white_space.h"

namespace outrider {
namespace {

constexpr std::string_view kLineEnds = "\r\n";
// A text that begins with more space than this is content.
constexpr size_t kMaxSpaceBeforeReasoning = 64;

}  // namespace

std::unique_ptr<ToolCallReader> MakeToolCallReader(const ToolFormat& format,
                                                   const StringParameters& string_parameters) {
  switch (format.arguments) {
    case ArgumentsForm::kKeysAndValues:
      return MakeKeyValueCallReader(format, string_parameters);
    case ArgumentsForm::kParameters:
      return MakeParameterCallReader(format);
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

void OutputParser::Finish(std::vector<OutputPiece>* pieces) {
  Run(true, pieces);
  reasoning_.Release(pieces);
  if (!after_call_) content_.Release(pieces);
}

void OutputParser::Run(bool final, std::vector<OutputPiece>* pieces) {
  std::string_view text = pending_;
  const auto take_count = [&] {
    const size_t taken = pending_.size() - text.size();
    return taken_bytes_ + static_cast<int64_t>(taken);
  };
  for (bool more = true; more;) {
    const bool reasoning = state_ == State::kReasoning || state_ == State::kReasoningStart;
    more = Step(&text, final, pieces);
    if (reasoning || state_ == State::kReasoning || state_ == State::kReasoningStart) {
      reasoning_bytes_ = take_count();
    }
  }
  taken_bytes_ = take_count();
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
  return false;
}

// Looks for the mark that begins the reasoning: some models write it though the prompt has it.
bool OutputParser::Start(std::string_view* text, bool final) {
  const size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  const std::string_view rest = text->substr(begin);
  const bool early = state_ == State::kReasoningStart || begin <= kMaxSpaceBeforeReasoning;
  const bool may_begin = rest.size() < kReasoningBegin.size() && kReasoningBegin.starts_with(rest);
  if (state_ == State::kReasoningStart) text->remove_prefix(begin);
  if (early && rest.starts_with(kReasoningBegin)) {
    text->remove_prefix(text->size() - rest.size() + kReasoningBegin.size());
    state_ = State::kReasoningStart;
    return true;
  }
  if (early && may_begin && !final) return false;
  state_ = state_ == State::kStart ? State::kContent : State::kReasoning;
  return true;
}

bool OutputParser::Reasoning(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  std::array<std::string_view, 3> markers = {kReasoningEnd};
  if (task_.tools != nullptr && task_.tools->ends_reasoning) {
    markers[1] = task_.tools->section_begin;
    markers[2] = task_.tools->call_begin;
  }
  const MarkerMatch match = FindMarker(*text, markers, final);
  reasoning_.Add(text->substr(0, match.begin), pieces);
  text->remove_prefix(match.begin);
  if (!match.marker) return false;
  if (*match.marker == 0) text->remove_prefix(kReasoningEnd.size());
  reasoning_.Drop();
  after_reasoning_ = true;
  state_ = State::kContent;
  return true;
}

bool OutputParser::Content(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  std::array<std::string_view, 3> markers;
  if (task_.tools != nullptr) {
    markers = {task_.tools->call_begin, task_.tools->section_begin, task_.tools->section_end};
  }
  const MarkerMatch match = FindMarker(*text, markers, final);
  AddContent(text->substr(0, match.begin), pieces);
  text->remove_prefix(match.begin);
  if (!match.marker) return false;
  text->remove_prefix(markers[*match.marker].size());
  if (*match.marker == 0) {
    call_ = MakeToolCallReader(*task_.tools, task_.string_parameters);
    state_ = State::kCall;
  } else {
    content_.Drop();
    after_call_ = true;
  }
  return true;
}

bool OutputParser::Call(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
  const size_t before = pieces->size();
  const ToolCallReader::Status status = call_->Read(text, final, pieces);
  if (status == ToolCallReader::Status::kMalformed) {
    state_ = State::kContent;
    AddContent(std::string(task_.tools->call_begin) + call_->taken(), pieces);
    return true;
  }
  if (pieces->size() > before) {  // the call has begun
    content_.Drop();
    after_call_ = true;
  }
  if (status == ToolCallReader::Status::kNeedsMore) return false;
  state_ = State::kContent;
  return true;
}

void OutputParser::AddContent(std::string_view text, std::vector<OutputPiece>* pieces) {
  if (after_reasoning_) {
    text.remove_prefix(std::min(text.find_first_not_of(kLineEnds), text.size()));
    after_reasoning_ = text.empty();
  }
  if (text.find_first_not_of(kSpace) != std::string_view::npos) after_call_ = false;
  content_.Add(text, pieces);
}

}  // namespace outrider
