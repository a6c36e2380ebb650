// MLA decode on Hopper over an e4m3 cache: tiles of up to 16 or 32 rows against tiles of 64 keys
// with the operands swapped, S^T = K Q^T and O^T = V^T P^T: keys and columns are the side of 64 of
// each product, rows the narrow one. Three warpgroups per block, one block per multiprocessor.
//   producer   fetches items; one warp copies the latent part of the raw e4m3 keys, one the rotary
//              part, into a ring of stages.
//   consumers  two warpgroups. Each takes whole splits (MlaSplits), every other one, with a
//              reference, a sum and an output of its own in registers, so they share nothing within
//              a split, and one multiplies while the other computes probabilities.
//
// Keys are the operand that wgmma takes from registers: ldmatrix brings bytes, one conversion per
// two bytes gives f16, exactly. What ldmatrix does to the order of bytes is applied to the queries
// once (LoadQueries); for values it permutes columns, which the output's addresses undo. Queries
// are f16 with a power of two per row, probabilities f16; the tensor's scale goes into the softmax
// scale and the output. e4m3 NaN stays NaN.
//
// A split's result is folded into a running result in shared memory, in order of position: the
// consumers take turns. The arithmetic of the fold is that of mla_decode_combine.cuh. A tile of 16
// rows and one of 32 give equal bits, so their choice is part of the schedule.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_producer.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_results.cuh"

namespace outrider::cuda {

template <int kRows>
__global__ void __launch_bounds__(kSwapAbThreads, 1)
    DecodeMlaF8SwapAb(const __grid_constant__ MlaKernelArguments args,
                      const __grid_constant__ MlaSwapAbMaps maps) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = MlaSwapAbShared<kRows>;
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  if (threadIdx.x == 0) {
    if ((SharedAddress(shared_bytes) & 1023) != 0) __trap();
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      for (auto& full : shared.kv_full) BarrierInit(&full[stage], 2);  // one per part
      BarrierInit(&shared.kv_empty[stage], 4 * kWarpArrivals);         // the warps of a consumer
    }
    for (auto& turn : shared.turn) BarrierInit(&turn, 4 * kWarpArrivals);
    BarrierInit(&shared.q_full, 1);
    for (int slot = 0; slot < 2; ++slot) {
      BarrierInit(&shared.item_full[slot], 1);
      BarrierInit(&shared.item_empty[slot], (4 * kSwapAbConsumers + 1) * kWarpArrivals);
    }
    BarrierInitFence();
    PrefetchTensorMap(&maps.latent);
    PrefetchTensorMap(&maps.rotary);
  }
  __syncthreads();
  WaitForPriorGrid();
  LaunchDependents();
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == kSwapAbConsumers) {
    LowerRegisters<40>();
    ProduceSwapAb(args, maps, shared);
  } else {
    RaiseRegisters<232>();
    ConsumeSwapAb<kRows>(args, maps.q, shared);
  }
}

}  // namespace outrider::cuda
