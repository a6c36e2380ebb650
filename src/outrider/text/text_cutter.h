// Cuts long text before it is tokenized. Kimi's tokenizer does so, and a cut changes the tokens
// around it: to give its tokens is to cut where it cuts.
#pragma once

#include <cstddef>
#include <string_view>

#include "outrider/base/function_ref.h"

namespace outrider {

/// Both in characters (code points); 0: no limit.
struct CutLimits {
  size_t text = 0;  // longest piece
  size_t run = 0;   // longest run of white space, and of anything but white space, between two cuts
};

/// Hands `text`, valid UTF-8, to `emit` in pieces, in order; none is empty. White space is what
/// Python's str.isspace says: Unicode's White_Space and the controls U+001C to U+001F.
void CutText(std::string_view text, const CutLimits& limits,
             FunctionRef<void(std::string_view)> emit);

}  // namespace outrider
