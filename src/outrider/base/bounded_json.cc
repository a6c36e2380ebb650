#include "outrider/base/bounded_json.h"

namespace outrider {

// `what` is "[json.exception.parse_error.101] parse error at line 1, column 8: syntax error while
// ...": what follows "at" is for who wrote the text.
std::string ShortJsonReason(std::string_view what) {
  constexpr std::string_view kBefore = "parse error at ";
  constexpr size_t kMaxBytes = 200;
  const size_t before = what.find(kBefore);
  if (before != std::string_view::npos) what.remove_prefix(before + kBefore.size());
  return std::string(what.substr(0, kMaxBytes)) + (what.size() > kMaxBytes ? "..." : "");
}

}  // namespace outrider
