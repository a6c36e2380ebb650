// Tool calls whose arguments are tags that name them, DeepSeek-V3.2's and V4's with attributes, and
// Step-3.5's: they become a JSON object. Where the end of a value is missing, the next tag ends it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
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

using Form = ArgumentWriter::Form;

// A tag that is longer is none.
constexpr size_t kMaxTagBytes = 512;

constexpr std::string_view kQuotes = "\"'";

// Where a tag's inside ends, which begins `text`; nothing when more text is needed to tell. At the
// end there is '>', or what shows that it is missing.
std::optional<size_t> TagEnd(std::string_view text) {
  const size_t stop = std::min(text.find_first_of("<\n"), kMaxTagBytes);
  std::optional<size_t> first;
  for (size_t end = text.find('>'); end < stop; end = text.find('>', end + 1)) {
    const std::string_view inside = text.substr(0, end);
    const bool quoted = inside.find_first_of(kQuotes) != std::string_view::npos;
    if (!quoted || kQuotes.find(inside.back()) != std::string_view::npos) return end;
    // Perhaps within quotation marks, perhaps their end is missing.
    if (!first) first = end;
  }
  if (text.size() < stop) return std::nullopt;
  return first.value_or(stop);
}

struct Parameter {
  std::string_view name;
  Form form = Form::kBySchema;
};

// The parameter that attributes tell of; nothing when they have no name.
std::optional<Parameter> ReadAttributes(std::string_view inside) {
  constexpr std::string_view kName = "name=";
  constexpr std::string_view kString = "string=";
  const size_t name_at = inside.find(kName);
  if (name_at == std::string_view::npos) return std::nullopt;
  std::string_view name = inside.substr(name_at + kName.size());
  std::string_view is_string = inside.substr(0, name_at);
  // A name may hold quotation marks.
  if (const size_t string_at = name.rfind(kString); string_at != std::string_view::npos) {
    is_string = name.substr(string_at);
    name = name.substr(0, string_at);
  }
  Parameter parameter;
  if (is_string.find(kString) != std::string_view::npos) {
    if (is_string.find("true") != std::string_view::npos) parameter.form = Form::kText;
    if (is_string.find("false") != std::string_view::npos) parameter.form = Form::kJson;
  }
  name = Trimmed(name);
  if (!name.empty() && kQuotes.find(name.front()) != std::string_view::npos) {
    const char quote = name.front();
    name.remove_prefix(1);
    name = name.substr(0, name.rfind(quote));
  }
  parameter.name = Trimmed(name);
  return parameter.name.empty() ? std::nullopt : std::optional(parameter);
}

class ParameterCallReader : public ToolCallReader {
 public:
  ParameterCallReader(const ToolFormat& format, const FunctionTypes& types)
      : format_(format),
        has_attributes_(format.arguments == ArgumentsForm::kAttributes),
        types_(types),
        arguments_("parameter", /*on_lines=*/!has_attributes_) {}

  Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) override {
    if (state_ == State::kHeader) {
      const Status status = header_.ReadCall(format_, text, final, pieces);
      if (status != Status::kEnded) return status;
      const auto types = types_.find(pieces->back().text);
      arguments_.Begin(types == types_.end() ? nullptr : &types->second, pieces);
      state_ = State::kBetween;
    }
    while (state_ != State::kEnded) {
      const bool more = state_ == State::kTag ? ReadTag(text, pieces) : ReadPart(text, pieces);
      if (!more) return Status::kNeedsMore;
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
    kBetween,  // parameters
    kTag,      // within one that may begin a parameter
    kValue,
    kEnded,
  };
  enum Mark : size_t {
    kParameterBegin,
    kParameterEnd,
    kCallEnd,
    kCallBegin,
    kSectionBegin,
    kSectionEnd,
    kCallTag,     // a call's, without a name as it should be
    kOtherBegin,  // any other tag's
    kOtherEnd
  };

  std::array<std::string_view, 9> Marks() const {
    std::array<std::string_view, 9> marks = {format_.parameter_begin, format_.parameter_end,
                                             format_.call_end,        format_.call_begin,
                                             format_.section_begin,   format_.section_end};
    if (has_attributes_) {
      // Every tag is known by its beginning, and parameters by their names.
      marks[kParameterBegin] = {};
      marks[kCallTag] = kDsmlCallTag;
      marks[kOtherBegin] = kDsmlBegin;
      marks[kOtherEnd] = kDsmlEnd;
    }
    return marks;
  }

  // Reads up to the next mark; false when there is none yet.
  bool ReadPart(std::string_view* text, std::vector<OutputPiece>* pieces) {
    const std::array marks = Marks();
    // The beginning of a mark at the text's very end is no text either.
    const MarkerMatch match = FindMarker(*text, marks, /*final=*/false);
    // What a model writes between parameters has no meaning.
    if (state_ == State::kValue) arguments_.AddValue(text->substr(0, match.begin), pieces);
    text->remove_prefix(match.begin);
    if (!match.marker) return false;
    const auto mark = static_cast<Mark>(*match.marker);
    if (state_ == State::kValue) {
      arguments_.EndValue(
          mark == kParameterEnd ? ArgumentWriter::ValueEnd::kOwn : ArgumentWriter::ValueEnd::kOther,
          pieces);
    }
    switch (mark) {
      case kParameterBegin:
      case kOtherBegin:
      case kOtherEnd:
        state_ = State::kTag;
        break;
      case kParameterEnd:
        state_ = State::kBetween;
        break;
      default:
        arguments_.End(pieces);
        state_ = State::kEnded;
        // What surrounds a call shows that the model forgot its end.
        if (mark != kCallEnd) return true;
        break;
    }
    is_closing_ = mark == kOtherEnd;
    text->remove_prefix(marks[mark].size());
    return true;
  }

  // Reads the inside of a tag; false when its end has not come.
  bool ReadTag(std::string_view* text, std::vector<OutputPiece>* pieces) {
    const std::optional<size_t> end = TagEnd(*text);
    if (!end) return false;
    const std::string inside(text->substr(0, *end));
    text->remove_prefix(*end);
    if (text->starts_with('>')) text->remove_prefix(1);
    state_ = State::kBetween;
    std::optional<Parameter> parameter;
    if (*end == kMaxTagBytes) return true;
    if (has_attributes_) {
      if (!is_closing_) parameter = ReadAttributes(inside);  // whatever the tag is called
    } else if (!Trimmed(inside).empty()) {
      parameter = {Trimmed(inside), Form::kBySchema};
    }
    if (!parameter) return true;
    arguments_.BeginValue(parameter->name, parameter->form, pieces);
    state_ = State::kValue;
    return true;
  }

  const ToolFormat& format_;
  bool has_attributes_;
  const FunctionTypes& types_;
  State state_ = State::kHeader;
  CallHeader header_;
  bool is_closing_ = false;  // the tag that is read
  ArgumentWriter arguments_;
};

}  // namespace

std::unique_ptr<ToolCallReader> MakeParameterCallReader(const ToolFormat& format,
                                                        const FunctionTypes& types) {
  return std::make_unique<ParameterCallReader>(format, types);
}

}  // namespace outrider
