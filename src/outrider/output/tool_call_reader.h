// Reads one tool call of a model's text, from after the marker that begins it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"
#include "outrider/output/value_types.h"

namespace outrider {

class ToolCallReader {
 public:
  enum class Status : uint8_t {
    kNeedsMore,  // all that can be taken was taken
    kEnded,      // the call is complete
    kMalformed,  // this is no call: what was taken is `taken()`
  };

  /// What ended the text within a call.
  enum class TextEnd : uint8_t {
    kByModel,  // the model said that it is done
    kCutOff,   // something else, as the limit of tokens
  };

  virtual ~ToolCallReader() = default;

  /// Takes text from the front of `text`, and appends what it means. `final`: no text follows it.
  virtual Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) = 0;

  /// After the last text, if the call has begun and not ended: appends what is left of it. True
  /// when the call is whole all the same: a model may leave out the end, and what a limit cut off
  /// is not completed.
  virtual bool Finish(TextEnd end, std::vector<OutputPiece>* pieces) = 0;

  /// After kMalformed: the text that was taken.
  virtual const std::string& taken() const = 0;
};

/// The reader for a format. The arguments must outlive it.
std::unique_ptr<ToolCallReader> MakeToolCallReader(const ToolFormat& format,
                                                   const FunctionTypes& types);

/// Readers by the form of the arguments.
std::unique_ptr<ToolCallReader> MakeJsonCallReader(const ToolFormat& format);
std::unique_ptr<ToolCallReader> MakeKeyValueCallReader(const ToolFormat& format,
                                                       const FunctionTypes& types);
std::unique_ptr<ToolCallReader> MakeParameterCallReader(const ToolFormat& format,
                                                        const FunctionTypes& types);

}  // namespace outrider
