// Which part of a row of numbers each of several ranks has. Ranks share a model: each holds a part
// of the weights and computes a part of every result (communicator.h brings the parts together).
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "outrider/base/error.h"

namespace outrider {

/// One of `ranks` ranks, by number from 0.
struct RankPlace {
  int32_t rank = 0;
  int32_t ranks = 1;
};

/// Numbers [first, first + count).
struct Share {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const Share&) const = default;
};

/// How a weight [N, K], or the columns of rows, are divided among ranks. No sum is ever divided:
/// products are cut by N, what they give.
enum class Cut : uint8_t {
  kNone,   // every rank has all
  kHeads,  // by heads of attention, in equal parts. What a rank gets of its heads stays there
  kInner,  // by an MLP's inner columns, which stay on the rank that has them
  kRows,   // by rows of the weight; what comes of them is brought together on every rank
};

/// The columns of a block of FP8 weights.
inline constexpr int64_t kCutBlock = 128;

/// The place's part of `size` numbers, in order of rank. kHeads: equal parts. kInner, kRows: whole
/// blocks of 128 where every rank gets one, else of 16, else of 1; the last block may be shorter.
inline Share ShareOf(Cut cut, int64_t size, const RankPlace& place) {
  if (cut == Cut::kNone || place.ranks == 1) return {0, size};
  if (cut == Cut::kHeads) {
    OUTRIDER_CHECK(size % place.ranks == 0, "{} over {} ranks", size, place.ranks);
    return {size / place.ranks * place.rank, size / place.ranks};
  }
  int64_t block = 1;
  for (const int64_t wanted : {kCutBlock, int64_t{16}}) {
    if ((size + wanted - 1) / wanted < place.ranks) continue;
    block = wanted;
    break;
  }
  const int64_t blocks = (size + block - 1) / block;
  const auto begin = [&](int64_t rank) {
    return std::min(size, blocks * rank / place.ranks * block);
  };
  return {begin(place.rank), begin(place.rank + 1) - begin(place.rank)};
}

/// The largest number of ranks below `ranks` whose parts of `size` numbers all fit, as fits(share)
/// says; 1, which has all of them, where there is no larger one.
template <typename Fits>
int32_t FewerRanks(Cut cut, int64_t size, int32_t ranks, Fits fits) {
  const auto can_share = [&](int32_t fewer) {
    if (cut == Cut::kHeads && size % fewer != 0) return false;
    for (int32_t rank = 0; rank < fewer; ++rank) {
      if (!fits(ShareOf(cut, size, {rank, fewer}))) return false;
    }
    return true;
  };
  int32_t fewer = ranks - 1;
  while (fewer > 1 && !can_share(fewer)) --fewer;
  return fewer;
}

}  // namespace outrider
