// MLA decode on Hopper: 64 rows against tiles of 64 keys, three warpgroups per block with a role
// each, one block per multiprocessor, items pulled from a device-side list.
//
// Rows are (token, head) pairs of one request, so a window of any length fills tiles without
// padding between tokens. The output of 64 rows, 512 float32 columns each, takes half of the
// register file, so one tile of rows is resident.
//   scores    S = Q K^T over all 576 dimensions, references (maxima), probabilities P to shared
//             memory, sums; everything that is one number per row; the walk over items and pages.
//   outputs   two warpgroups with 256 columns each: O = O * alpha_t + P_t V_t.
// While scores turns S of a tile into P, outputs multiplies the tile before. Either takes tiles in
// order and waits only for what it needs.
//
// The arithmetic is that of a single sequence over tiles, with the reference m_t of each row, a
// whole number in the log2 domain; a tile whose keys a row does not see leaves the row's bits
// alone. The reference moves only when the maximum has grown by more than 2^8 since (each row
// decides for itself); alpha is exactly 1 otherwise and the rescaling is skipped. Scores are summed
// over columns 0-255, 256-511, 512-575; those of odd tiles begin with the second.
//
// At a split's end (MlaSplits) O is rounded to float16 columns and folded into those of the splits
// before, which stay in the registers of the same threads (mla_decode_columns.cuh), and O starts
// again. An item that covers only later splits of a long request leaves a result per split. Blocks
// that have run out of items wait for such results and fold them (mla_decode_merge.cuh). Where
// a tile is shared by two items, one after the other, the second waits for the result of the first
// and goes on from it. The blocks of the grid must all be able to run at once.
//
// The kernel starts beside the end of the one before it. Where the plan is settled, what it and
// earlier steps have left (items, block tables, all keys but the step's own) is read at once, the
// rest after that end.
//
// Keys arrive through tensor maps as {64 columns, 8 rows, column groups, row groups}, so shared
// memory holds [row group][column group][8 rows x 128 bytes, swizzled] and both strides of the
// wgmma descriptors are uniform whatever the page size. A stage has three parts with barriers of
// their own: columns 0-255 and 256-511, each refilled in halves of 32 keys by the warpgroup whose
// half of V it is, and 512-575, refilled when the tile's probabilities arrive: there is room for
// two stages only and a late copy is felt at once.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_outputs.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_scores.cuh"

namespace outrider::cuda {

/// kSharedTiles: whether two items may share a tile (a form of its own, since what it takes makes
/// small batches 1 to 2 % slower).
template <bool kSharedTiles>
__global__ void __launch_bounds__(kMlaThreads, 1)
    DecodeMlaBf16(const __grid_constant__ MlaKernelArguments args,
                  const __grid_constant__ MlaTensorMaps maps) {
  // Without static shared memory the dynamic part begins at a multiple of 1024, which the swizzle
  // needs; there are no bytes left to align it by hand.
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  MlaShared& shared = *reinterpret_cast<MlaShared*>(shared_bytes);
  if (threadIdx.x == 0 && (SharedAddress(shared_bytes) & 1023) != 0) __trap();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  LoadWalk loads;
  // What comes before the first products is spread over the warps: barriers, the first item and its
  // pages, the first copies.
  if (warp == 0 && ElectOne()) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < 3; ++part) BarrierInit(&shared.kv_full[stage][part], 1);
    }
    BarrierInit(&shared.p_full, 4 * kWarpArrivals);
    BarrierInit(&shared.p_empty, 8 * kWarpArrivals);
    BarrierInit(&shared.split_full, 4 * kWarpArrivals);
    BarrierInit(&shared.q_full, 1);
    BarrierInitFence();
    PrefetchTensorMap(&maps.q);
    PrefetchTensorMap(&maps.kv_half);
    PrefetchTensorMap(&maps.kv_rotary);
  }
  __syncwarp();
  if (!args.plan_settled) WaitForPriorGrid();
  if (warp == kLoadWarp) loads.Begin(args, shared);
  __syncthreads();
  // A warp per part of the keys: all of the first tile is asked for before the second.
  const auto issue = [&](int begin, int end) {
    if (warp % 4 == 0 && warp < kLoadWarp && ElectOne()) {
      for (int stage = begin; stage < end; ++stage) {
        for (int half = 0; half < 2; ++half) IssueKeys(args, maps, shared, stage, warp / 4, half);
      }
    } else if (warp == kLoadWarp + 2 && ElectOne()) {
      for (int stage = begin; stage < end; ++stage) IssueRotary(args, maps, shared, stage);
    }
    __syncwarp();
  };
  const FirstTiles first(shared.item[0]);
  issue(0, first.early);
  WaitForPriorGrid();
  LaunchDependents();
  if (warp == kLoadWarp + 1 && ElectOne()) IssueQueries(maps, shared, shared.item[0]);
  __syncwarp();
  issue(first.early, first.all);
  if (warp == kLoadWarp) loads.Continue(args, shared);
  __syncthreads();
  issue(first.all, kStages);
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 2) {
    LowerRegisters<88>();
    ComputeScores<kSharedTiles>(args, shared, loads);
    if (threadIdx.x == kOutputThreads) LeaveKernel(args.workspace, shared.epoch);
  } else {
    RaiseRegisters<208>();
    AccumulateOutputs<kSharedTiles>(args, maps, shared);
  }
}

}  // namespace outrider::cuda
