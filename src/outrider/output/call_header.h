// What stands before the arguments of a tool call: the function's name, perhaps in an id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"
#include "outrider/output/tool_call_reader.h"

namespace outrider {

/// Names that functions may have: 1 to 128 letters, digits, "_", "-" or "." and nothing else, as
/// OpenAI has them, and dots, which other servers' tools use.
bool IsFunctionName(std::string_view name);

class CallHeader {
 public:
  enum class Status : uint8_t {
    kNeedsMore,
    kEnded,    // one of the ends follows
    kTooLong,  // a stray marker must not swallow a text
  };

  /// Takes what stands before the first of `ends`, which is left in `text`.
  Status Read(std::string_view* text, std::span<const std::string_view> ends, bool final);

  /// For formats that end headers with a mark: takes all up to it and the mark, and appends the
  /// call to `pieces`.
  ToolCallReader::Status ReadCall(const ToolFormat& format, std::string_view* text, bool final,
                                  std::vector<OutputPiece>* pieces);

  /// The call that begins with this header; nothing when it names no function.
  std::optional<OutputPiece> Call(const ToolFormat& format) const;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace outrider
