// What a part of a model's text turned out to be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct OutputPiece {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kToolCall,   // a call begins: `text` is the function's name
    kArguments,  // a fragment of the arguments, JSON text, of the call that began last
  };

  Kind kind;
  std::string text;
  std::string call_id = {};  // kToolCall: the id that the model gave; "" when it gives none

  bool operator==(const OutputPiece&) const = default;
};

/// Appends text to the last piece if that is of the same kind, else as a piece of its own. Empty
/// text adds nothing.
inline void AppendText(OutputPiece::Kind kind, std::string_view text,
                       std::vector<OutputPiece>* pieces) {
  if (text.empty()) return;
  if (pieces->empty() || pieces->back().kind != kind) {
    pieces->push_back({kind, std::string(text)});
  } else {
    pieces->back().text += text;
  }
}

}  // namespace outrider
