// Tool calls whose arguments are keys and values, GLM's: they become a JSON object. Where a mark is
// missing, the next one tells what the text before it was.
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/argument_writer.h"
#include "outrider/output/call_header.h"
#include "outrider/output/marker.h"
#include "outrider/output/tool_call_reader.h"
#include "outrider/output/white_space.h"

namespace outrider {
namespace {

class KeyValueCallReader : public ToolCallReader {
 public:
  KeyValueCallReader(const ToolFormat& format, const FunctionTypes& types)
      : format_(format), types_(types) {}

  Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) override {
    if (state_ == State::kHeader) {
      const Status status = ReadHeader(text, final, pieces);
      if (status != Status::kEnded) return status;
    }
    while (state_ != State::kEnded) {
      if (!ReadPart(text, pieces)) return Status::kNeedsMore;
    }
    return Status::kEnded;
  }

  bool Finish(TextEnd end, std::vector<OutputPiece>* pieces) override {
    if (end == TextEnd::kByModel && state_ == State::kBetween) {
      arguments_.End(pieces);
      return true;
    }
    if (state_ == State::kValue) arguments_.CutValueOff(pieces);
    return false;
  }

  const std::string& taken() const override { return header_.text(); }

 private:
  enum class State : uint8_t {
    kHeader,
    kBetween,      // pairs
    kKey,          // within one
    kBeforeValue,  // between a key and its value
    kValue,        // within one
    kEnded,
  };
  enum Mark : size_t { kKeyBegin, kKeyEnd, kValueBegin, kValueEnd, kCallEnd, kCallBegin };

  std::array<std::string_view, 6> Marks() const {
    return {kArgumentKeyBegin, kArgumentKeyEnd,  kArgumentValueBegin,
            kArgumentValueEnd, format_.call_end, format_.call_begin};
  }

  Status ReadHeader(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
    const std::array marks = Marks();
    const CallHeader::Status status = header_.Read(text, marks, final);
    if (status == CallHeader::Status::kNeedsMore && !final) return Status::kNeedsMore;
    if (status != CallHeader::Status::kEnded) return Status::kMalformed;
    const bool at_pair =
        text->starts_with(kArgumentKeyBegin) || text->starts_with(format_.call_end);
    const bool at_key_end = text->starts_with(kArgumentKeyEnd);
    const bool at_value = text->starts_with(kArgumentValueBegin);
    if (!at_pair && !at_key_end && !at_value) return Status::kMalformed;
    std::string_view name = Trimmed(header_.text());
    // Ling-3.0 at times writes the line end behind it as these two characters.
    if (name.ends_with("\\n")) name = Trimmed(name.substr(0, name.size() - 2));
    if (!at_pair) {
      // The first key's beginning is missing: the key is the header's last word.
      const size_t space = name.find_first_of(kSpace);
      if (space == std::string_view::npos) return Status::kMalformed;
      text_ = Trimmed(name.substr(space));
      name = name.substr(0, space);
    }
    if (!IsFunctionName(name)) return Status::kMalformed;
    pieces->push_back({OutputPiece::Kind::kToolCall, std::string(name)});
    const auto types = types_.find(name);
    arguments_.Begin(types == types_.end() ? nullptr : &types->second, pieces);
    state_ = at_pair ? State::kBetween : State::kKey;
    return Status::kEnded;
  }

  // Reads up to the next mark and takes it; false when there is none yet.
  bool ReadPart(std::string_view* text, std::vector<OutputPiece>* pieces) {
    const std::array marks = Marks();
    // The beginning of a mark at the text's very end is no text either.
    const MarkerMatch match = FindMarker(*text, marks, /*final=*/false);
    const std::string_view before = text->substr(0, match.begin);
    if (state_ == State::kValue) {
      arguments_.AddValue(before, pieces);
    } else {
      text_ += before;
    }
    text->remove_prefix(match.begin);
    if (!match.marker) return false;
    const auto mark = static_cast<Mark>(*match.marker);
    if (mark != kCallBegin) text->remove_prefix(marks[mark].size());
    switch (state_) {
      case State::kBetween:
        AfterPair(mark, pieces);
        break;
      case State::kKey:
        AfterKey(mark, pieces);
        break;
      case State::kBeforeValue:
        BeforeValue(mark, pieces);
        break;
      default:
        AfterValue(mark, pieces);
        break;
    }
    return true;
  }

  // What stands between pairs has no meaning, unless it is a key whose beginning is missing.
  void AfterPair(Mark mark, std::vector<OutputPiece>* pieces) {
    if (mark == kKeyEnd && !Trimmed(text_).empty()) {
      TakeKey();
    } else {
      GoOn(mark, pieces);
    }
  }

  void AfterKey(Mark mark, std::vector<OutputPiece>* pieces) {
    const bool is_blank = Trimmed(text_).empty();
    if (is_blank && mark == kKeyBegin) return;  // said twice
    if (is_blank) return GoOn(mark, pieces);
    TakeKey();
    if (mark == kValueBegin) {
      BeginValue(pieces);
    } else if (mark != kKeyEnd && mark != kValueEnd) {
      GoOnWithoutValue(mark, pieces);
    }
  }

  void BeforeValue(Mark mark, std::vector<OutputPiece>* pieces) {
    if (mark == kValueBegin) return BeginValue(pieces);
    if (mark == kKeyEnd) return;  // said twice
    GoOnWithoutValue(mark, pieces);
  }

  void AfterValue(Mark mark, std::vector<OutputPiece>* pieces) {
    if (mark == kValueBegin && arguments_.IsBlank()) return;  // said twice
    const bool own = mark == kValueEnd;
    arguments_.EndValue(own ? ArgumentWriter::ValueEnd::kOwn : ArgumentWriter::ValueEnd::kOther,
                        pieces);
    GoOn(mark, pieces);
  }

  // The pair is over, and the mark tells what follows.
  void GoOn(Mark mark, std::vector<OutputPiece>* pieces) {
    text_.clear();
    state_ = State::kBetween;
    if (mark == kKeyBegin) state_ = State::kKey;
    if (mark != kCallEnd && mark != kCallBegin) return;
    arguments_.End(pieces);
    state_ = State::kEnded;
  }

  void TakeKey() {
    key_ = Trimmed(text_);
    text_.clear();
    state_ = State::kBeforeValue;
  }

  void BeginValue(std::vector<OutputPiece>* pieces) {
    arguments_.BeginValue(key_, ArgumentWriter::Form::kBySchema, pieces);
    state_ = State::kValue;
  }

  // The value's beginning is missing: the value is what came after the key.
  void GoOnWithoutValue(Mark mark, std::vector<OutputPiece>* pieces) {
    BeginValue(pieces);
    arguments_.AddValue(Trimmed(text_), pieces);
    AfterValue(mark, pieces);
  }

  const ToolFormat& format_;
  const FunctionTypes& types_;
  State state_ = State::kHeader;
  CallHeader header_;
  std::string text_;  // since the last mark, outside of values
  std::string key_;   // whose value follows
  ArgumentWriter arguments_ = ArgumentWriter("argvalue");
};

}  // namespace

std::unique_ptr<ToolCallReader> MakeKeyValueCallReader(const ToolFormat& format,
                                                       const FunctionTypes& types) {
  return std::make_unique<KeyValueCallReader>(format, types);
}

}  // namespace outrider
