// Reads one tool call of a model's text, from after the marker that begins it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_format.h"
#include "outrider/output/output_piece.h"

namespace outrider {

/// For each function, the parameters whose values are strings by its schema. Formats that write
/// keys and values need it: a bare 5 may be a number or a text.
using StringParameters = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;

class ToolCallReader {
 public:
  enum class Status : uint8_t {
    kNeedsMore,  // all that can be taken was taken
    kEnded,      // the call is complete
    kMalformed,  // this is no call: what was taken is `taken()`
  };

  virtual ~ToolCallReader() = default;

  /// Takes text from the front of `text`, and appends what it means. `final`: no text follows it.
  virtual Status Read(std::string_view* text, bool final, std::vector<OutputPiece>* pieces) = 0;

  /// After kMalformed: the text that was taken.
  virtual const std::string& taken() const = 0;
};

/// The reader for a format. The arguments must outlive it.
std::unique_ptr<ToolCallReader> MakeToolCallReader(const ToolFormat& format,
                                                   const StringParameters& string_parameters);

/// Readers by the form of the arguments.
std::unique_ptr<ToolCallReader> MakeJsonCallReader(const ToolFormat& format);
std::unique_ptr<ToolCallReader> MakeKeyValueCallReader(const ToolFormat& format,
                                                       const StringParameters& string_parameters);
std::unique_ptr<ToolCallReader> MakeParameterCallReader(const ToolFormat& format);

}  // namespace outrider
