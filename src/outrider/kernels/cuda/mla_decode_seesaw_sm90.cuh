// The body of the bf16 MLA decode kernel for steps in which products are what takes the time: two
// warpgroups that multiply, each with 256 of the output's columns, and one of producers. Even tiles
// of an item's keys are warpgroup 0's, odd ones warpgroup 1's: it computes their scores and
// probabilities, multiplies them from registers and hands them over, so that the other multiplies
// them too. One's softmax runs beside the other's products.
//   warpgroup 0, tile t:  PV of t - 1, scores, softmax, hand over, PV of t
//   warpgroup 1, tile t:  scores, softmax (from the references of t - 1 on), hand over, PV of t - 1
//                         and of t
// Both take the tiles' probabilities in order of position and references, alphas and sums go from
// tile to tile, so this is the arithmetic of mla_decode_sm90.cuh and gives the same bits: which
// body runs is part of the schedule. So are the plan, the splits and what follows the last item.
//
// Half of a stage's columns is refilled when the warpgroup that has them as values has multiplied
// them. Scores therefore begin with the half that the own warpgroup frees, which is earlier. A
// tile's probabilities lie where its columns 512-575 were, which the scores alone need.
//
// Splits are whole pairs of tiles, so before an item's end warpgroup 1 has their last. It computes
// the rows' numbers while the other's probabilities multiply and folds when its own have; keys are
// on their way then. Warpgroup 0 folds while the next scores multiply.
//
// Registers: 224 of 240 are the accumulator, the folded columns and the scores. bench/results/
// hopper_mla_decode.md has what was tried and what limits it.
#pragma once

#include "outrider/kernels/cuda/mla_decode_seesaw_consumer_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_seesaw_producer_sm90.cuh"

namespace outrider::cuda {

template <bool kSharedTiles>
__global__ void __launch_bounds__(kSeesawThreads, 1)
    DecodeMlaSeesawSm90(const __grid_constant__ MlaKernelArguments args,
                        const __grid_constant__ MlaTensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  MlaSeesawShared& shared = *reinterpret_cast<MlaSeesawShared*>(shared_bytes);
  if (threadIdx.x == 0 && (SharedAddress(shared_bytes) & 1023) != 0) __trap();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == 0 && ElectOne()) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < 3; ++part) BarrierInit(&shared.kv_full[stage][part], 1);
      for (int i = 0; i < 4; ++i) {
        BarrierInit(&shared.kv_empty[stage][i / 2][i % 2], 4 * kWarpArrivals);
      }
      BarrierInit(&shared.rotary_empty[stage], 4 * kWarpArrivals);
      BarrierInit(&shared.p_full[stage], 4 * kWarpArrivals);
    }
    BarrierInit(&shared.q_full, 1);
    BarrierInit(&shared.q_empty, 8 * kWarpArrivals);
    BarrierInit(&shared.references_full, 4 * kWarpArrivals);
    BarrierInit(&shared.split_full, 4 * kWarpArrivals);
    BarrierInit(&shared.split_empty, 8 * kWarpArrivals);
    for (int slot = 0; slot < kSeesawItems; ++slot) {
      BarrierInit(&shared.item_full[slot], kWarpArrivals);
      BarrierInit(&shared.item_empty[slot], kSeesawReaders * kWarpArrivals);
    }
    BarrierInitFence();
    PrefetchTensorMap(&maps.q);
    PrefetchTensorMap(&maps.kv_half);
    PrefetchTensorMap(&maps.kv_rotary);
  }
  __syncthreads();
  WaitForPriorGrid();
  LaunchDependents();
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 2) {
    LowerRegisters<24>();
    CopyItems(args, maps, shared);
  } else {
    RaiseRegisters<240>();
    SeesawConsumer<kSharedTiles>(args, shared).Run();
  }
}

}  // namespace outrider::cuda
