// Listed attention on Hopper: the bf16 body of MLA decode (mla_decode_bf16.cuh tells its algorithm)
// with lists in the place of requests. A row of the step is a request of one row, whose "keys" are
// the places of its list: plan, splits, folds and merge are those of MLA decode. A tile is up to 64
// heads of one row against 64 places.
//
// What differs is how entries come. The copy engine would need nine instructions for each; here a
// warpgroup of its own refills what tiles leave with ordinary copies of 16 bytes
// (listed_attention_walk.cuh). A barrier counts every gathering thread's copies as they land, and
// the scores fence before the tensor cores read. Rows of one request read entries in common through
// L2.
#pragma once

#include "outrider/kernels/cuda/sparse/listed_attention_codes.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_outputs.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_scores.cuh"

namespace outrider::cuda {

/// kSharedTiles: as in DecodeMlaBf16. kListedThreads threads.
template <typename Form, bool kSharedTiles>
__device__ __forceinline__ void AttendListed(const typename Form::Arguments& args,
                                             const MlaTensorMaps& maps,
                                             ListedShared<Form>& shared) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == 0 && ElectOne()) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int half = 0; half < 2; ++half) {
        BarrierInit(&shared.kv_full[stage][half], kGatherThreads);
        BarrierInit(&shared.kv_free[stage][half], 8 * kWarpArrivals);
      }
    }
    BarrierInit(&shared.p_full, 4 * kWarpArrivals);
    BarrierInit(&shared.p_empty, 8 * kWarpArrivals);
    BarrierInit(&shared.split_full, 4 * kWarpArrivals);
    BarrierInit(&shared.q_full, 1);
    BarrierInitFence();
    PrefetchTensorMap(&maps.q);
  }
  __syncwarp();
  ListWalk<Form> walk;
  WaitForPriorGrid();
  LaunchDependents();
  if (warp == kLoadWarp) walk.Begin(args, shared);
  __syncthreads();
  if (warp == kLoadWarp + 1 && ElectOne()) IssueListedQueries(maps, shared, shared.item[0]);
  __syncwarp();
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 3) {
    LowerRegisters<24>();
    if constexpr (Form::kCodes) {
      GatherCodes(args, shared);
    } else {
      GatherEntries(args, shared);
    }
  } else if (role == 2) {
    LowerRegisters<72>();
    ScoreListed<Form, kSharedTiles>(args, shared, walk);
    if (threadIdx.x == kOutputThreads) LeaveKernel(args.mla.workspace, shared.epoch);
  } else {
    RaiseRegisters<208>();
    AccumulateListed<Form, kSharedTiles>(args, maps, shared);
  }
}

}  // namespace outrider::cuda
