// Text whose end may have to go: line ends before a marker, the end of a Markdown block.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "outrider/output/output_piece.h"

namespace outrider {

/// Passes text on except the run of droppable characters at its end, which waits for what follows.
class HeldText {
 public:
  HeldText(OutputPiece::Kind kind, std::string_view droppable)
      : kind_(kind), droppable_(droppable) {}

  void Add(std::string_view text, std::vector<OutputPiece>* pieces) {
    const size_t last = text.find_last_not_of(droppable_);
    if (last == std::string_view::npos) {
      held_ += text;
      return;
    }
    AppendText(kind_, held_, pieces);
    AppendText(kind_, text.substr(0, last + 1), pieces);
    held_ = text.substr(last + 1);
  }

  /// Passes on what waits.
  void Release(std::vector<OutputPiece>* pieces) {
    AppendText(kind_, held_, pieces);
    held_.clear();
  }

  void Drop() { held_.clear(); }

 private:
  OutputPiece::Kind kind_;
  std::string_view droppable_;
  std::string held_;
};

}  // namespace outrider
