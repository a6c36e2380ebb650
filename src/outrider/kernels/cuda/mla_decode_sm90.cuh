// MLA decode on Hopper: 64 rows against tiles of 64 keys, four warpgroups per block with a role
// each, one block per multiprocessor, items pulled from a device-side list.
//
// Rows are (token, head) pairs of one request, so a window of any length fills tiles without
// padding between tokens. The output of 64 rows, 512 float32 columns each, takes half of the
// register file, so one tile of rows is resident.
//   producer  fetches items, queries and keys; for an e4m3 cache it also converts to bf16 (exact;
//             the tensor's scale goes into the softmax scale and the output).
//   scores    S = Q K^T over all 576 dimensions, references (maxima), probabilities P to shared
//             memory, sums; everything that is one number per row.
//   outputs   two warpgroups with 256 columns each: O = O * alpha_t + P_t V_t.
// While scores turns S of a tile into P, outputs multiplies the tile before. Every role takes tiles
// in order and waits only for what it needs, so neither a late key nor a late P holds up the other.
//
// The arithmetic is that of a single sequence over tiles, with the reference m_t of each row; a
// tile whose keys a row does not see leaves the row's bits alone. The reference moves only when the
// maximum has grown by more than 2^8 since (each row decides for itself); alpha is exactly 1
// otherwise and the rescaling is skipped.
//
// At a split's end (MlaSplits) O, the reference and the sum are folded into a running result in
// global memory, private to the block and small enough to stay in L2, and O starts again. An item
// that covers only later splits of a long request leaves its result for the combine kernel.
//
// Keys arrive through tensor maps as {64 columns, 8 rows, column groups, row groups}, so shared
// memory holds [row group][column group][8 rows x 128 bytes, swizzled] and both strides of the
// wgmma descriptors are uniform whatever the page size. A stage has three parts with barriers of
// their own: columns 0-255 and 256-511 (each freed by the warpgroup whose half of V it is) and
// 512-575; a producer warp each, since there is room for two stages only and a late copy is felt at
// once.
#pragma once

#include "outrider/kernels/cuda/mla_decode_outputs_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_producer_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_scores_sm90.cuh"

namespace outrider::cuda {

template <bool kE4m3>
__global__ void __launch_bounds__(kMlaThreads, 1)
    DecodeMlaSm90(const __grid_constant__ MlaKernelArguments args,
                  const __grid_constant__ MlaTensorMaps maps) {
  // Without static shared memory the dynamic part begins at a multiple of 1024, which the swizzle
  // needs; there are no bytes left to align it by hand.
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  MlaShared& shared = *reinterpret_cast<MlaShared*>(shared_bytes);
  if (threadIdx.x == 0 && (SharedAddress(shared_bytes) & 1023) != 0) __trap();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < 3; ++part) {
        BarrierInit(&shared.kv_full[stage][part], kE4m3 ? kProducerThreads : 1);
      }
      for (int part = 0; part < 3; ++part) BarrierInit(&shared.kv_empty[stage][part], 4);
    }
    for (int half = 0; half < 2; ++half) BarrierInit(&shared.p_full[half], 4);
    BarrierInit(&shared.p_empty, 8);
    BarrierInit(&shared.q_full, 1);
    BarrierInit(&shared.q_empty, 4 + 2);  // scores; the first warp of either output warpgroup
    for (int slot = 0; slot < 2; ++slot) {
      BarrierInit(&shared.item_full[slot], 1);
      BarrierInit(&shared.item_empty[slot], 12);
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
  if (role == 3) {
    LowerRegisters<kE4m3 ? 88 : 40>();
    Produce<kE4m3>(args, maps, shared);
  } else if (role == 2) {
    LowerRegisters<104>();
    ComputeScores(args, shared);
  } else {
    RaiseRegisters<kE4m3 ? 160 : 184>();
    AccumulateOutputs(args, shared);
  }
}

}  // namespace outrider::cuda
