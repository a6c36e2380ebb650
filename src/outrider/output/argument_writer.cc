#include "outrider/output/argument_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "outrider/output/white_space.h"

namespace outrider {
namespace {

using nlohmann::json;

// A closing tag that is longer is not taken for a misspelt end.
constexpr size_t kMaxEndBytes = 40;

// The inside of a JSON string. Byte by byte, so that it does not matter where a text is cut.
std::string Escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (const auto byte = static_cast<uint8_t>(c); byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

void Append(std::string_view text, std::vector<OutputPiece>* pieces) {
  AppendText(OutputPiece::Kind::kArguments, text, pieces);
}

std::string_view WithoutSpaceAtEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// The closing tag at the end of `text`, whole or only begun; empty when there is none.
std::string_view ClosingTagAtEnd(std::string_view text) {
  const size_t begin = text.rfind('<');
  if (begin == std::string_view::npos) return {};
  const std::string_view tag = text.substr(begin);
  const bool is_closing = tag.size() == 1 || tag[1] == '/';
  const size_t end = tag.find('>');
  const bool goes_to_end = end == std::string_view::npos || end + 1 == tag.size();
  return is_closing && goes_to_end && tag.size() <= kMaxEndBytes ? tag : std::string_view();
}

// Where the part of a value begins that goes if the value's end turns out to be missing: a closing
// tag and space around it.
size_t DoubtfulEnd(std::string_view value) {
  const std::string_view text = WithoutSpaceAtEnd(value);
  const std::string_view tag = ClosingTagAtEnd(text);
  return WithoutSpaceAtEnd(text.substr(0, text.size() - tag.size())).size();
}

// How many letters have to be changed, added or left out to make one word of the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Whether a closing tag is another spelling of the one named `end_name`.
bool IsMisspelt(std::string_view tag, std::string_view end_name) {
  constexpr std::string_view kNamespace = "dsml";
  constexpr size_t kMaxChanges = 2;
  constexpr size_t kMinPart = 4;  // letters by which a part of the name is known
  std::string letters;
  for (const char c : tag) {
    if (c >= 'a' && c <= 'z') letters += c;
    if (c >= 'A' && c <= 'Z') letters += static_cast<char>(c - 'A' + 'a');
  }
  if (letters.starts_with(kNamespace)) letters.erase(0, kNamespace.size());
  const bool is_part =
      letters.size() >= kMinPart && (end_name.starts_with(letters) || end_name.ends_with(letters));
  return is_part || EditDistance(letters, end_name) <= kMaxChanges;
}

// Whether a text that goes on may become JSON.
bool MayBecomeJson(std::string_view text) {
  if (text.empty()) return false;
  constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};
  return std::string_view("{[\"-0123456789").find(text[0]) != std::string_view::npos ||
         std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return word.starts_with(text); });
}

}  // namespace

void ArgumentWriter::Begin(const ParameterTypes* types, std::vector<OutputPiece>* pieces) {
  all_types_ = types;
  Append("{", pieces);
}

void ArgumentWriter::BeginValue(std::string_view name, Form form,
                                std::vector<OutputPiece>* pieces) {
  form_ = form;
  held_.clear();
  types_ = nullptr;
  is_blank_ = at_begin_ = true;
  const bool is_first = names_.empty();
  is_left_out_ = !names_.emplace(name).second;
  if (all_types_ != nullptr) {
    const auto found = all_types_->find(name);
    if (found != all_types_->end()) types_ = &found->second;
  }
  if (form_ == Form::kBySchema && types_ != nullptr && types_->allows_strings()) {
    form_ = Form::kText;
  }
  if (is_left_out_) return;
  Append(is_first ? "\"" : ", \"", pieces);
  Append(Escaped(name), pieces);
  Append(form_ == Form::kText ? "\": \"" : "\": ", pieces);
}

// Passes on a part of a string.
void ArgumentWriter::PassOn(std::string_view text, std::vector<OutputPiece>* pieces) {
  is_blank_ = is_blank_ && Trimmed(text).empty();
  if (!is_left_out_) Append(Escaped(text), pieces);
}

void ArgumentWriter::AddValue(std::string_view text, std::vector<OutputPiece>* pieces) {
  if (text.empty()) return;
  if (std::exchange(at_begin_, false) && on_lines_ && text[0] == '\n') text.remove_prefix(1);
  held_ += text;
  if (form_ != Form::kText) return;  // whether it is JSON shows at its end
  const size_t certain = DoubtfulEnd(held_);
  PassOn(std::string_view(held_).substr(0, certain), pieces);
  held_.erase(0, certain);
}

bool ArgumentWriter::IsBlank() const { return is_blank_ && Trimmed(held_).empty(); }

// Takes away what stands where the value's end should: space, and perhaps the end misspelt.
void ArgumentWriter::DropMissingEnd() {
  const std::string_view text = WithoutSpaceAtEnd(held_);
  const std::string_view tag = ClosingTagAtEnd(text);
  const bool misspelt = !tag.empty() && IsMisspelt(tag, end_name_);
  held_.resize(misspelt ? DoubtfulEnd(held_) : text.size());
}

bool ArgumentWriter::IsJson(std::string_view value) const {
  const json parsed = json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return false;
  if (form_ == Form::kJson || types_ == nullptr) return true;
  return types_->Allows(parsed) && !types_->Allows(json(held_));
}

void ArgumentWriter::EndValue(ValueEnd end, std::vector<OutputPiece>* pieces) {
  if (end == ValueEnd::kOther) {
    DropMissingEnd();
  } else if (on_lines_ && held_.ends_with('\n')) {
    held_.pop_back();
  }
  if (form_ == Form::kText) {
    PassOn(held_, pieces);
    if (!is_left_out_) Append("\"", pieces);
  } else if (!is_left_out_) {
    const std::string value(Trimmed(held_));
    Append(IsJson(value) ? value : '"' + Escaped(held_) + '"', pieces);
  }
  held_.clear();
}

void ArgumentWriter::CutValueOff(std::vector<OutputPiece>* pieces) {
  if (form_ == Form::kText) {
    PassOn(held_, pieces);
  } else if (!is_left_out_) {
    const std::string_view value = Trimmed(held_);
    if (!value.empty()) {
      Append(MayBecomeJson(value) ? std::string(value) : '"' + Escaped(held_), pieces);
    }
  }
  held_.clear();
}

void ArgumentWriter::End(std::vector<OutputPiece>* pieces) { Append("}", pieces); }

}  // namespace outrider
