// Unicode's Normalization Form C (UAX 15), as the library `tokenizers` has it: some characters that
// are younger than its Unicode stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// `text`, which is valid UTF-8, in Normalization Form C: characters and the marks behind them are
/// composed where one character stands for both.
std::string NormalFormC(std::string_view text);

}  // namespace outrider
