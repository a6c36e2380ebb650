// Tool calls whose arguments are keys and values, GLM's: they become a JSON object.
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
  KeyValueCallReader(const ToolFormat& format, const StringParameters& string_parameters)
      : format_(format), all_string_parameters_(string_parameters) {}

  Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) override {
    if (state_ == State::kHeader) {
      const std::array ends = {kArgumentKeyBegin, format_.call_end};
      const CallHeader::Status status = header_.Read(text, ends, final);
      if (status == CallHeader::Status::kNeedsMore && !final) return Status::kNeedsMore;
      std::optional<OutputPiece> call = header_.Call(format_);
      if (status != CallHeader::Status::kEnded || !call) return Status::kMalformed;
      const auto function = all_string_parameters_.find(call->text);
      if (function != all_string_parameters_.end()) string_parameters_ = &function->second;
      pieces->push_back(std::move(*call));
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
  enum class State : uint8_t { kHeader, kBetween, kKey, kBeforeValue, kValue, kEnded };

  // Reads up to the next marker; false when there is none yet.
  bool ReadPart(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) {
    static constexpr std::array kNone = {std::string_view(), std::string_view()};
    std::array markers = kNone;
    switch (state_) {
      case State::kBetween:
        markers = {kArgumentKeyBegin, format_.call_end};
        break;
      case State::kKey:
        markers = {kArgumentKeyEnd, format_.call_end};
        break;
      case State::kBeforeValue:
        markers = {kArgumentValueBegin, format_.call_end};
        break;
      default:
        markers = {kArgumentValueEnd, {}};
        break;
    }
    const MarkerMatch match = FindMarker(*text, markers, final);
    const std::string_view before = text->substr(0, match.begin);
    // What a model writes between these parts has no meaning.
    if (state_ == State::kKey) key_ += before;
    if (state_ == State::kValue) arguments_.AddValue(before, pieces);
    text->remove_prefix(match.begin);
    if (!match.marker) return false;
    text->remove_prefix(markers[*match.marker].size());
    if (*match.marker == 1) {
      End(pieces);
    } else {
      Enter(pieces);
    }
    return true;
  }

  // Goes to the state after the one whose marker was found.
  void Enter(std::vector<OutputPiece>* pieces) {
    switch (state_) {
      case State::kBetween:
        key_.clear();
        state_ = State::kKey;
        return;
      case State::kKey:
        state_ = State::kBeforeValue;
        return;
      case State::kBeforeValue:
        BeginValue(pieces);
        state_ = State::kValue;
        return;
      default:
        arguments_.EndValue(pieces);
        state_ = State::kBetween;
        return;
    }
  }

  void BeginValue(std::vector<OutputPiece>* pieces) {
    const std::string_view key = Trimmed(key_);
    const bool is_string = string_parameters_ != nullptr && string_parameters_->contains(key);
    arguments_.BeginValue(key, is_string, pieces);
  }

  void End(std::vector<OutputPiece>* pieces) {
    arguments_.End(pieces);
    state_ = State::kEnded;
  }

  const ToolFormat& format_;
  const StringParameters& all_string_parameters_;
  const std::set<std::string, std::less<>>* string_parameters_ = nullptr;  // of this function
  State state_ = State::kHeader;
  CallHeader header_;
  std::string key_;
  ArgumentWriter arguments_;
};

}  // namespace

std::unique_ptr<ToolCallReader> MakeKeyValueCallReader(const ToolFormat& format,
                                                       const StringParameters& string_parameters) {
  return std::make_unique<KeyValueCallReader>(format, string_parameters);
}

}  // namespace outrider
