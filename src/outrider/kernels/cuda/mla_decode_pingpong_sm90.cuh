// The ping-pong body of the bf16 MLA decode kernel, for steps in which products take the time
// (FlashMLA calls this schedule "seesaw"; FlashAttention-3 has a related "ping-pong"). Two
// warpgroups multiply, each for 256 of the output's columns; a third one copies. Warpgroup 0 owns
// the even tiles of an item's keys, warpgroup 1 the odd ones. The owner of a tile computes its
// scores and probabilities, multiplies them from registers, and hands them over in shared memory,
// so that the other warpgroup multiplies them too. One warpgroup's softmax runs beside the other's
// products:
//   warpgroup 0, tile t:  PV of t - 1, scores, softmax, hand over, PV of t
//   warpgroup 1, tile t:  scores, softmax (from the references of t - 1 on), hand over, PV of t - 1
//                         and of t
// Both multiply the tiles' probabilities in order of position. References, scale factors and sums
// pass from tile to tile. So the arithmetic is that of mla_decode_sm90.cuh and gives the same bits.
// The plan, the splits and the fold after the last item are the same too.
//
// Half of a stage's columns is refilled when the warpgroup that uses them as values has multiplied
// them. Scores begin with the half that the own warpgroup frees, since that is free earlier. The
// probabilities of a tile take the place of its columns 512-575, which only scores read.
//
// A split is a whole number of pairs of tiles, so warpgroup 1 has the last tile of every split
// before an item's end. It computes the rows' sums and maxima while the other warpgroup's
// probabilities multiply, and folds when its own have; the next keys are being copied then.
// Warpgroup 0 folds while its next scores multiply.
//
// Registers: 224 of 240 hold the accumulator, the folded columns and the scores.
#pragma once

#include "outrider/kernels/cuda/mla_decode_pingpong_consumer_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_pingpong_producer_sm90.cuh"

namespace outrider::cuda {

template <bool kSharedTiles>
__global__ void __launch_bounds__(kPingPongThreads, 1)
    DecodeMlaPingPongSm90(const __grid_constant__ MlaKernelArguments args,
                          const __grid_constant__ MlaTensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  MlaPingPongShared& shared = *reinterpret_cast<MlaPingPongShared*>(shared_bytes);
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
    for (int slot = 0; slot < kPingPongItems; ++slot) {
      BarrierInit(&shared.item_full[slot], kWarpArrivals);
      BarrierInit(&shared.item_empty[slot], kPingPongReaders * kWarpArrivals);
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
    PingPongConsumer<kSharedTiles>(args, shared).Run();
  }
}

}  // namespace outrider::cuda
