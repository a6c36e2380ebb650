// What the web page is told of the server once, when it begins to listen to the steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

struct PageFacts {
  std::string drafter;  // as `outrider explain` names it; "": not known
  std::string drafter_reason;
  std::string draft_length;  // "": nothing is drafted
  std::string draft_length_reason;
  std::vector<std::string> example_questions;  // of the model's folder; none: the page has its own
};

/// A JSON object: {"num_speculative_tokens", "max_model_len", "drafter", "draft_length",
/// "example_questions"}. `drafter` and `draft_length` are {"value", "reason"} or null.
std::string PageFactsJson(const PageFacts& facts, int32_t num_speculative_tokens,
                          int32_t max_model_len);

}  // namespace outrider
