// The batch that `outrider explain --batch` takes: "p:37 d:4@900 d:1@12".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/batch/batch_layout.h"

namespace outrider {

/// One request of a described batch.
struct BatchItem {
  std::string text;  // as written
  Phase phase = Phase::kDecode;
  int32_t rows = 1;     // tokens that the step runs
  int32_t context = 0;  // tokens cached before it
};

/// Items separated by blanks or commas:
///   p:N or p:N@C   N tokens of a prompt up to its end, after C cached ones (0 unless given)
///   c:N or c:N@C   N tokens of a prompt of which more follows
///   d:N@C          a decode request of N rows, after C >= 1 cached tokens
/// At least one item, at most 2^20 rows in all. Throws Error{kInvalidArgument} that names `where`,
/// the item, what is wrong with it and what would be right.
std::vector<BatchItem> ParseBatchItems(std::string_view where, std::string_view text);

}  // namespace outrider
