// Reads a Hugging Face tokenizer.json into plain data. The file is hostile input: everything that
// the encoder relies on is checked here, and what the encoder cannot do is refused by name.
#pragma once

#include <string_view>

#include "outrider/text/tokenizer_spec.h"

namespace outrider {

/// Throws Error (kInvalidArgument) with one line that begins with `where`, a name for the file.
TokenizerSpec ParseTokenizerJson(std::string_view json, std::string_view where);

}  // namespace outrider
