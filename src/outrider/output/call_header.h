// What stands before the arguments of a tool call: the function's name, perhaps in an id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"

namespace outrider {

class CallHeader {
 public:
  enum class Status : uint8_t {
    kNeedsMore,
    kEnded,    // one of the ends follows
    kTooLong,  // a stray marker must not swallow a text
  };

  /// Takes what stands before the first of `ends`, which is left in `text`.
  Status Read(std::string_view* text, std::span<const std::string_view> ends, bool final);

  /// Takes the end too, so that `text()` is all that was taken.
  void TakeEnd(std::string_view end, std::string_view* text);

  /// The call that begins with this header; nothing when it names no function.
  std::optional<OutputPiece> Call(const ToolFormat& format) const;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace outrider
