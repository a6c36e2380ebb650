// Writes the arguments of a call as a JSON object while their names and values are read.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_piece.h"
#include "outrider/output/value_types.h"

namespace outrider {

class ArgumentWriter {
 public:
  /// What the model says of a value.
  enum class Form : uint8_t {
    kText,      // a string, as it is
    kJson,      // JSON
    kBySchema,  // nothing: the parameter's schema tells
  };

  /// What ends a value: its own mark, or something else, where the model forgot or misspelt it.
  enum class ValueEnd : uint8_t { kOwn, kOther };

  /// `end_name`: the letters of the mark that ends values, for knowing it misspelt. `on_lines`: a
  /// value stands on lines of its own, so one line end at either side is no part of it.
  explicit ArgumentWriter(std::string_view end_name, bool on_lines = false)
      : end_name_(end_name), on_lines_(on_lines) {}

  /// `types`: of the function's parameters; null when nothing is known of them.
  void Begin(const ParameterTypes* types, std::vector<OutputPiece>* pieces);

  /// A value follows. Of a name that came before, it is left out: a call has one value for each.
  void BeginValue(std::string_view name, Form form, std::vector<OutputPiece>* pieces);
  /// A part of the value. Strings are passed on, except what may turn out to be a misspelt end.
  void AddValue(std::string_view text, std::vector<OutputPiece>* pieces);
  /// Whether the value has no text so far but space.
  bool IsBlank() const;
  /// The value is complete. What should have been JSON and is not becomes a string.
  void EndValue(ValueEnd end, std::vector<OutputPiece>* pieces);
  /// The text has ended within the value: what there is of it.
  void CutValueOff(std::vector<OutputPiece>* pieces);

  void End(std::vector<OutputPiece>* pieces);

 private:
  bool IsJson(std::string_view value) const;
  void DropMissingEnd();
  void PassOn(std::string_view text, std::vector<OutputPiece>* pieces);

  std::string_view end_name_;
  bool on_lines_;
  const ParameterTypes* all_types_ = nullptr;
  std::set<std::string, std::less<>> names_;  // that have a value
  const ValueTypes* types_ = nullptr;         // of the value; null when nothing is known
  Form form_ = Form::kText;
  std::string held_;  // the value, or of a string its end that may have to go
  bool is_left_out_ = false;
  bool is_blank_ = true;   // what was passed on of a string
  bool at_begin_ = false;  // nothing of the value was read
};

}  // namespace outrider
