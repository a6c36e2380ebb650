// Tool calls whose arguments are one JSON object: DeepSeek's and Kimi's.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/call_header.h"
#include "outrider/output/held_text.h"
#include "outrider/output/marker.h"
#include "outrider/output/tool_call_reader.h"
#include "outrider/output/white_space.h"

namespace outrider {
namespace {

constexpr std::string_view kBlockBegin = "```json";

class JsonCallReader : public ToolCallReader {
 public:
  explicit JsonCallReader(const ToolFormat& format)
      : format_(format),
        around_(format.arguments == ArgumentsForm::kFencedJson ? " \t\r\n`" : kSpace),
        arguments_(OutputPiece::Kind::kArguments, around_) {}

  Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) override {
    if (state_ == State::kHeader) {
      const Status status = header_.ReadCall(format_, text, final, pieces);
      if (status != Status::kEnded) return status;
      state_ = format_.arguments == ArgumentsForm::kFencedJson ? State::kFence : State::kArguments;
    }
    if (state_ == State::kFence && !SkipFence(text, final)) return Status::kNeedsMore;
    // The call's own end, or what shows that the model forgot it.
    const std::array ends = {format_.call_end, format_.section_end, format_.call_begin,
                             format_.section_begin};
    const MarkerMatch match = FindMarker(*text, ends, final);
    AddArguments(text->substr(0, match.begin), pieces);
    text->remove_prefix(match.begin);
    if (!match.marker) return Status::kNeedsMore;
    if (match.marker == 0) text->remove_prefix(format_.call_end.size());
    EndArguments(pieces);
    return Status::kEnded;
  }

  bool Finish(TextEnd end, std::vector<OutputPiece>* pieces) override {
    if (end == TextEnd::kCutOff) return false;
    EndArguments(pieces);
    const size_t last = text_.find_last_not_of(around_);
    return nlohmann::json::accept(text_.substr(0, last + 1));
  }

  const std::string& taken() const override { return header_.text(); }

 private:
  enum class State : uint8_t { kHeader, kFence, kArguments };

  // True when the arguments follow, or no text.
  bool SkipFence(std::string_view* text, bool final) {
    const size_t begin = text->find_first_not_of(kSpace);
    if (begin == std::string_view::npos) {
      *text = {};
      return false;
    }
    text->remove_prefix(begin);
    if (!final && text->size() < kBlockBegin.size() && kBlockBegin.starts_with(*text)) return false;
    if (text->starts_with(kBlockBegin)) text->remove_prefix(kBlockBegin.size());
    state_ = State::kArguments;
    return true;
  }

  void AddArguments(std::string_view text, std::vector<OutputPiece>* pieces) {
    if (!begun_) {
      text.remove_prefix(std::min(text.size(), text.find_first_not_of(around_)));
      begun_ = !text.empty();
    }
    text_ += text;
    arguments_.Add(text, pieces);
  }

  // A call without a word on arguments has none.
  void EndArguments(std::vector<OutputPiece>* pieces) {
    if (begun_) return;
    AddArguments("{}", pieces);
  }

  const ToolFormat& format_;
  State state_ = State::kHeader;
  CallHeader header_;
  std::string_view around_;  // characters around the arguments that are not part of them
  HeldText arguments_;
  std::string text_;    // all of the arguments, and what may stand behind them
  bool begun_ = false;  // an argument character was seen
};

}  // namespace

std::unique_ptr<ToolCallReader> MakeJsonCallReader(const ToolFormat& format) {
  return std::make_unique<JsonCallReader>(format);
}

}  // namespace outrider
