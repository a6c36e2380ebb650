// What host and device of the router share, and the checks of its arguments.
#pragma once

#include <algorithm>
#include <cstdint>

#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/moe/router_lanes.h"

namespace outrider::cuda {

inline constexpr int kRouterBlocks = 8;  // of a cluster
inline constexpr int kRouterThreads = 1024;
inline constexpr int kRouterExperts = 512;
inline constexpr int kRouterChoices = 32;
inline constexpr size_t kRouterShared = 227 * 1024;
inline constexpr size_t kRouterFixedShared = 5 * 1024;  // of arrays outside RouterLayout

/// What a block has in shared memory besides fixed arrays.
struct RouterLayout {
  int rows;         // of a block's range
  int words;        // of a row of marks, odd against bank conflicts
  uint32_t ids;     // offsets in bytes: uint16 [rows, top_k]
  uint32_t marks;   // uint32 [experts, words]
  uint32_t prior;   // uint16 [experts, words]: marks in the words before
  uint32_t scores;  // float32 [threads / 32, 32 * PerLane], softmax only
  uint32_t bytes;
  int threads;
};

inline RouterLayout MakeRouterLayout(const ExpertRouterParams& params, int blocks) {
  RouterLayout layout;
  layout.rows = (params.num_rows + blocks - 1) / blocks;
  layout.words = (layout.rows + 31) / 32 | 1;
  // A thread per expert is needed, a warp per row wanted.
  const int warps = std::max((params.experts + 31) / 32, std::max(layout.rows, 1));
  layout.threads = layout.rows > 16 ? kRouterThreads : 32 * warps;
  const auto marks = static_cast<uint32_t>(params.experts * layout.words);
  layout.scores = 0;
  const bool softmax = params.scores == ExpertScores::kSoftmax;
  layout.marks = softmax ? static_cast<uint32_t>(layout.threads * PerLane(params.experts)) * 4 : 0;
  layout.prior = layout.marks + marks * 4;
  layout.ids = layout.prior + marks * 2;
  layout.bytes =
      (layout.ids + static_cast<uint32_t>(layout.rows * params.top_k) * 2 + 15) / 16 * 16;
  return layout;
}

/// Lanes of a group, 0 where experts are not grouped.
inline int GroupLanes(const ExpertRouterParams& params) {
  if (params.num_groups == 1) return 0;
  return params.experts / params.num_groups / PerLane(params.experts);
}

inline void CheckRouter(const ExpertRouterParams& params, int blocks) {
  if (params.num_rows < 0) {
    RefuseArgument("RouteExperts: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.experts < 1 || params.experts > kRouterExperts) {
    RefuseArgument("RouteExperts: ", params.experts, " experts, it must be 1 to ", kRouterExperts);
  }
  if (params.shared_experts < 0 || params.top_k < 1 || params.top_k > params.experts ||
      params.top_k + params.shared_experts > kRouterChoices) {
    RefuseArgument("RouteExperts: top_k is ", params.top_k, " of ", params.experts, " experts and ",
                   params.shared_experts,
                   " shared ones: it must be 1 to the number of experts, and ", kRouterChoices,
                   " with the shared ones at most");
  }
  if (params.tile_rows < 1) {
    RefuseArgument("RouteExperts: tile_rows is ", params.tile_rows, ", it must be at least 1");
  }
  const int groups = params.num_groups;
  if (groups < 1 || groups > 32 || params.experts % groups != 0 || params.top_groups < 1 ||
      params.top_groups > groups || params.top_groups * (params.experts / groups) < params.top_k) {
    RefuseArgument(
        "RouteExperts: ", groups, " groups of ", params.experts, " experts, of which ",
        params.top_groups, " are chosen from for top_k ", params.top_k,
        ": there must be 1 to 32 equal groups, and those chosen from must have top_k experts");
  }
  if (params.table != nullptr &&
      (params.tokens == nullptr || groups > 1 || params.bias != nullptr)) {
    RefuseArgument("RouteExperts: a table goes with tokens, without groups and bias");
  }
  if (!GroupsFillLanes(params.experts, groups)) {
    RefuseArgument("RouteExperts: groups of ", params.experts / groups, " experts; with ",
                   params.experts, " experts a group must have ", PerLane(params.experts),
                   " times a power of two");
  }
  if (MakeRouterLayout(params, blocks).bytes + kRouterFixedShared > kRouterShared) {
    RefuseArgument("RouteExperts: ", params.num_rows, " rows for ", params.experts,
                   " experts are too many");
  }
}

}  // namespace outrider::cuda
