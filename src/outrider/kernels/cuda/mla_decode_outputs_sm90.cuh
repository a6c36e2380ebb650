// The two output warpgroups of the MLA decode kernel: O = O * alpha + P V for 256 columns each, the
// fold at a split's end and the writing of results.
#pragma once

#include "outrider/kernels/cuda/mla_decode_loads_sm90.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

__device__ __forceinline__ void AccumulateOutputs(const MlaKernelArguments& args,
                                                  const MlaTensorMaps& maps, MlaShared& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int lane = threadIdx.x % 32;
  const int row0 = threadIdx.x % 128 / 32 * 16 + lane / 4;  // and row0 + 8
  const int column = group * 256 + lane % 4 * 2;
  const uint32_t p = SharedAddress(shared.p);
  float output[128];
  // Two columns each (output[2 * i] and the next) of the splits folded so far.
  __half2 columns[64];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    // Published before the probabilities of the item before were handed over.
    const MlaItem item = shared.item[item_count % kItemSlots];
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.rows & 255;
    const bool warp_rows = row0 - lane / 4 < rows;  // this warp has rows of the item
    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      BarrierWait(&shared.p_full[0], tile_count & 1);
      const float alpha0 = shared.alpha[row0];
      const float alpha1 = shared.alpha[row0 + 8];
      if (!walk.first_in_split && __any_sync(~0u, alpha0 != 1.0f || alpha1 != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) output[i] *= i & 2 ? alpha1 : alpha0;
      }
      const uint32_t values = SharedAddress(shared.kv[stage]) + group * kHalfBytes;
      PinRegisters(output);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          WgmmaCommit();
          BarrierWait(&shared.p_full[1], tile_count & 1);
          WgmmaFence();
        }
        const uint64_t a = MakeDescriptor(p + step * 32, 16, kGroupBytes);
        const uint32_t at = values + step * 2 * 4 * kGroupBytes;
        const bool accumulate = !walk.first_in_split || step != 0;
        WgmmaM64N256_SS_MN(output, a, MakeDescriptor(at, kGroupBytes, 4 * kGroupBytes), accumulate);
      }
      WgmmaCommit();
      WgmmaWait<0>();
      PinRegisters(output);
      if (lane == 0) BarrierArrive(&shared.p_empty);
      // The last to read a part refills it.
      NamedSync(kOutputsBarrier + group, 128);
      if (threadIdx.x % 128 == 0) IssueKeys(args, maps, shared, tile_count + kStages, group);
      __syncwarp();
      walk.first_in_split = false;
      if (!walk.Ends(item, tile)) continue;

      const int buffer = split_count++ & 1;
      if (warp_rows) {
        const float normal[2] = {shared.normal[buffer][row0], shared.normal[buffer][row0 + 8]};
        if (walk.first_split) {
#pragma unroll
          for (int i = 0; i < 64; ++i) {
            const float* o = &output[2 * i];
            columns[i] = __floats2half2_rn(o[0] * normal[i % 2], o[1] * normal[i % 2]);
          }
        } else {
          __half2 keep[2];
          __half2 add[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float2 fold = shared.fold[buffer][row0 + 8 * i];
            keep[i] = __float2half2_rn(fold.x);
            add[i] = __float2half2_rn(fold.y);
          }
#pragma unroll
          for (int i = 0; i < 64; ++i) {
            const float* o = &output[2 * i];
            columns[i] = FoldColumns(columns[i],
                                     __floats2half2_rn(o[0] * normal[i % 2], o[1] * normal[i % 2]),
                                     keep[i % 2], add[i % 2]);
          }
        }
      }
      if (walk.Emits(item)) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          if (row >= rows) continue;
          if (item.partial_unit >= 0) {
            __half* out = reinterpret_cast<__half*>(args.workspace.partial_outputs) +
                          walk.PartialRow(item, rows, row) * kMlaValueDim;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
              __stcg(reinterpret_cast<uint32_t*>(out + column + 8 * j), BitsOf(columns[2 * j + i]));
            }
          } else {
            const float factor = shared.factor[buffer][row];
            __nv_bfloat16* out =
                args.output + (static_cast<size_t>(item.first_row) + row) * kMlaValueDim;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
              *reinterpret_cast<uint32_t*>(out + column + 8 * j) =
                  OutputPair(columns[2 * j + i], factor);
            }
          }
        }
      }
      walk.Advance(item, args.splits);
    }
  }
}

}  // namespace outrider::cuda
