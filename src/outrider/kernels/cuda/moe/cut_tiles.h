// Parts of a routing's tiles, for grouped products that run in parts by place: what one makes of
// the first places can travel while the next one runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/moe/expert_routing.h"

namespace outrider::cuda {

inline constexpr int kMostTileParts = 8;

/// Part i has the places from the end of part i - 1 (0 without one) to ends[i]. A tile belongs to
/// the part that has its first place, or, by_last_place, its last one. So the tiles of parts 0 to i
/// by first place cover all places of these parts, and by last place only such.
struct CutTilesParams {
  ExpertRouting routing;
  int parts = 0;                      // 1 .. kMostTileParts
  int64_t ends[kMostTileParts] = {};  // ascending; the last one is not below the number of places
  bool by_last_place = false;
  int64_t room = 0;             // tiles that a part can have: MaxExpertTiles
  ExpertTile* tiles = nullptr;  // [parts, room]: of a part, in order of place
  int32_t* counts = nullptr;    // [parts]
};

/// Writes `tiles` and `counts`. Throws Error for a number of parts outside its range; otherwise
/// returns what the launch returned.
cudaError_t CutTiles(const CutTilesParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
