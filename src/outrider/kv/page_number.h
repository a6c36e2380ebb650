// Numbers of pages where several ranks each keep the cache of their own requests: they count the
// pages of all ranks, and say which rank has a page. One rank has pages 0, 1, ...
#pragma once

#include <cstdint>

#include "outrider/parallel/share.h"

namespace outrider {

/// The number of the place's own page `own`, counted from 0 on every rank.
inline int32_t PageNumber(int32_t own, const RankPlace& place) {
  return own * place.ranks + place.rank;
}

/// Which of `ranks` ranks has a page.
inline int32_t RankOfPage(int32_t page, int32_t ranks) { return page % ranks; }

/// Its number among the pages of the rank that has it.
inline int32_t OwnPage(int32_t page, int32_t ranks) { return page / ranks; }

}  // namespace outrider
