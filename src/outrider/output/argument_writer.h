// Writes the arguments of a call as a JSON object while their names and values are read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_piece.h"

namespace outrider {

class ArgumentWriter {
 public:
  void Begin(std::vector<OutputPiece>* pieces);

  /// A value follows: a string as it is, or JSON.
  void BeginValue(std::string_view name, bool is_string, std::vector<OutputPiece>* pieces);
  /// A part of the value. Strings are passed on at once.
  void AddValue(std::string_view text, std::vector<OutputPiece>* pieces);
  /// The value is complete. What should have been JSON and is not becomes a string.
  void EndValue(std::vector<OutputPiece>* pieces);

  void End(std::vector<OutputPiece>* pieces);

 private:
  std::string value_;
  bool is_string_ = false;
  bool any_ = false;  // a value was written
};

}  // namespace outrider
