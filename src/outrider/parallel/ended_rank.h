// What is said of a rank that has ended: which one and why to the server's log, which one to
// clients.
#pragma once

#include <string>
#include <string_view>

#include "outrider/parallel/share.h"

namespace outrider {

/// "rank 1 of 2 has ended: no memory is left".
inline std::string EndedRankText(const RankPlace& place, std::string_view reason) {
  return fmt::format("rank {} of {} has ended: {}", place.rank, place.ranks, reason);
}

/// What comes before the reason in such a text, which may name a file; "" of any other.
inline std::string_view EndedRankIn(std::string_view text) {
  constexpr std::string_view kStart = "rank ";
  constexpr std::string_view kEnd = " has ended: ";
  const size_t end = text.find(kEnd);
  if (!text.starts_with(kStart) || end == std::string_view::npos) return "";
  return text.substr(0, end + kEnd.find(':'));
}

}  // namespace outrider
