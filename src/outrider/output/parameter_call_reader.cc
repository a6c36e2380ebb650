// Tool calls whose arguments are tags that name them and say whether the value is a string,
// DeepSeek-V4's: they become a JSON object.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/argument_writer.h"
#include "outrider/output/call_header.h"
#include "outrider/output/marker.h"
#include "outrider/output/tool_call_reader.h"

namespace outrider {
namespace {

class ParameterCallReader : public ToolCallReader {
 public:
  explicit ParameterCallReader(const ToolFormat& format) : format_(format) {}

  Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) override {
    if (state_ == State::kHeader) {
      const Status status = header_.ReadCall(format_, text, final, pieces);
      if (status != Status::kEnded) return status;
      arguments_.Begin(pieces);
      state_ = State::kBetween;
    }
    while (state_ != State::kEnded) {
      if (!ReadPart(text, final, pieces)) {
        // A model that stops here has said everything but the end.
        if (final && state_ == State::kBetween) End(pieces);
        return Status::kNeedsMore;
      }
    }
    return Status::kEnded;
  }

  const std::string& taken() const override { return header_.text(); }

 private:
  enum class State : uint8_t { kHeader, kBetween, kName, kValue, kEnded };

  // Reads up to the next mark; false when there is none yet.
  bool ReadPart(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
    std::array<std::string_view, 4> marks;
    switch (state_) {
      case State::kBetween:
        marks = {kParameterBegin, format_.call_end, format_.section_end, format_.call_begin};
        break;
      case State::kName:
        marks = {kParameterOfText, kParameterOfJson, format_.call_end};
        break;
      default:
        marks = {kParameterEnd};
        break;
    }
    const MarkerMatch match = FindMarker(*text, marks, final);
    const std::string_view before = text->substr(0, match.begin);
    // What a model writes between parameters has no meaning.
    if (state_ == State::kName) name_ += before;
    if (state_ == State::kValue) arguments_.AddValue(before, pieces);
    text->remove_prefix(match.begin);
    if (!match.marker) return false;
    const std::string_view mark = marks[*match.marker];
    // Marks of what surrounds a call show that the model forgot its end.
    if (mark != format_.section_end && mark != format_.call_begin) {
      text->remove_prefix(mark.size());
    }
    if (mark == kParameterBegin) {
      name_.clear();
      state_ = State::kName;
    } else if (mark == kParameterOfText || mark == kParameterOfJson) {
      arguments_.BeginValue(name_, mark == kParameterOfText, pieces);
      state_ = State::kValue;
    } else if (mark == kParameterEnd) {
      arguments_.EndValue(pieces);
      state_ = State::kBetween;
    } else {
      End(pieces);
    }
    return true;
  }

  void End(std::vector<OutputPiece>* pieces) {
    arguments_.End(pieces);
    state_ = State::kEnded;
  }

  const ToolFormat& format_;
  State state_ = State::kHeader;
  CallHeader header_;
  std::string name_;
  ArgumentWriter arguments_;
};

}  // namespace

std::unique_ptr<ToolCallReader> MakeParameterCallReader(const ToolFormat& format) {
  return std::make_unique<ParameterCallReader>(format);
}

}  // namespace outrider
