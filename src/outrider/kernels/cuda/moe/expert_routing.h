// Which expert computes which rows of a step: what the router kernel leaves on the device for the
// grouped expert products and for the sum over choices. The host never reads it.
#pragma once

#include <cstdint>

namespace outrider::cuda {

/// Consecutive places of ExpertRouting::pairs that one tile of a grouped product takes: all of the
/// same expert, at most `tile_rows` of them.
struct alignas(16) ExpertTile {
  int32_t expert;       // [0, experts + shared)
  int32_t first_place;  // of its pairs in ExpertRouting::pairs
  int32_t num_rows;     // 1 .. tile_rows
  int32_t unused;
};

/// Pointers into device memory. A row has `choices` = top_k + shared experts: the chosen ones, best
/// first, then experts number `experts` .. `experts` + shared - 1, which every row has, with weight
/// 1. A pair is row * choices + choice; there are rows * choices of them, rows the true number.
///
/// A grouped product takes input row pairs[place] / choices. What gate and up give is best written
/// at its place, what down gives at its pair: [rows, choices, hidden], so that the sum over choices
/// reads a row's results in order.
struct ExpertRouting {
  int32_t* expert_ids = nullptr;  // [rows, choices]
  float* weights = nullptr;       // [rows, choices]
  int32_t* offsets = nullptr;     // [experts + shared + 1]: expert e has the places
                                  // offsets[e] .. offsets[e + 1] - 1
  int32_t* pairs = nullptr;       // [rows * choices]: by place; of an expert, in order of row
  int32_t* places = nullptr;      // optional, [rows * choices]: by pair, where `pairs` has it
  ExpertTile* tiles = nullptr;    // [MaxExpertTiles]: in order of place
  int32_t* num_tiles = nullptr;   // [1]
};

/// The most tiles that `rows` rows can give.
constexpr int64_t MaxExpertTiles(int64_t rows, int choices, int experts_and_shared, int tile_rows) {
  const int64_t pairs = rows * choices;
  const int64_t some = pairs < experts_and_shared ? pairs : experts_and_shared;
  return some + (pairs - some) / tile_rows;
}

}  // namespace outrider::cuda
