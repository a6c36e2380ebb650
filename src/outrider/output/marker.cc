#include "outrider/output/marker.h"

#include <string>

namespace outrider {

MarkerMatch FindMarker(std::string_view text, std::span<const std::string_view> markers,
                       bool final) {
  std::string first_bytes;
  for (const std::string_view marker : markers) {
    if (!marker.empty()) first_bytes += marker[0];
  }
  for (size_t begin = text.find_first_of(first_bytes); begin != std::string_view::npos;
       begin = text.find_first_of(first_bytes, begin + 1)) {
    const std::string_view rest = text.substr(begin);
    std::optional<size_t> longest;
    for (size_t i = 0; i < markers.size(); ++i) {
      const std::string_view marker = markers[i];
      if (marker.empty()) continue;
      if (!final && rest.size() < marker.size() && marker.starts_with(rest)) {
        return {begin, std::nullopt};
      }
      if (rest.starts_with(marker) && (!longest || markers[*longest].size() < marker.size())) {
        longest = i;
      }
    }
    if (longest) return {begin, longest};
  }
  return {text.size(), std::nullopt};
}

}  // namespace outrider
