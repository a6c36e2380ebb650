// The two output warpgroups of the MLA decode kernel: O = O * alpha + P V for 256 columns each, the
// fold at a split's end and the writing of results.
#pragma once

#include "outrider/kernels/cuda/mla_decode_loads_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_merge_sm90.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

/// Among four neighbouring lanes: lane `part` gets word `part` of each, in the order of lanes, so
/// that the four together store whole sectors.
__device__ __forceinline__ uint4 TransposeQuad(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                               int part) {
  const bool odd = part % 2 != 0;
  const bool high = part >= 2;
  const uint32_t ab = __shfl_xor_sync(~0u, odd ? a : b, 1);
  const uint32_t cd = __shfl_xor_sync(~0u, odd ? c : d, 1);
  // Word `part` % 2 (of a, b and of c, d) of this lane and its neighbour.
  const uint32_t ab0 = odd ? ab : a, ab1 = odd ? b : ab;
  const uint32_t cd0 = odd ? cd : c, cd1 = odd ? d : cd;
  const uint32_t other0 = __shfl_xor_sync(~0u, high ? ab0 : cd0, 2);
  const uint32_t other1 = __shfl_xor_sync(~0u, high ? ab1 : cd1, 2);
  return high ? make_uint4(other0, other1, cd0, cd1) : make_uint4(ab0, ab1, other0, other1);
}

/// Stores 256 columns of a thread's two rows, 8 apart, of which `rows` - 8 > 0 says whether the
/// second exists; word(2 * j + i) is columns 8 j + 2 * (lane % 4) and the next of row i.
template <typename Word>
__device__ __forceinline__ void StoreRows(uint8_t* at, int rows, Word word) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 64; j += 8) {
      const uint4 quad = TransposeQuad(word(j + i), word(j + i + 2), word(j + i + 4),
                                       word(j + i + 6), threadIdx.x % 4);
      if (8 * i < rows) {
        __stcg(reinterpret_cast<uint4*>(at + i * 8 * kResultRowBytes + 8 * j), quad);
      }
    }
  }
}

template <bool kSharedTiles>
__device__ __forceinline__ void AccumulateOutputs(const MlaKernelArguments& args,
                                                  const MlaTensorMaps& maps, MlaShared& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0);
  const int lane = threadIdx.x % 32;
  const int row0 = threadIdx.x % 128 / 32 * 16 + lane / 4;  // and row0 + 8
  // Bytes, of what it stores in a row; computed where it is needed, registers are short.
  auto place = [] { return threadIdx.x / 128 * (kResultRowBytes / 2) + threadIdx.x % 4 * 16; };
  const uint32_t p = SharedAddress(shared.p);
  float output[128];
  // Two columns each (output[2 * i] and the next) of the splits folded so far.
  __half2 columns[64];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    // Published before the probabilities of the item before were handed over.
    MlaItem item = TakeItem(shared, item_count);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.rows & 255;
    const bool warp_rows = warp * 16 < rows;  // this warp has rows of the item
    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      BarrierWait(&shared.p_full, tile_count & 1);
      // The scores of this tile are done with its rotary part, and after an item with its queries.
      if (group == 1 && warp == 1 && ElectOne()) {
        IssueRotary(args, maps, shared, tile_count + kStages);
        if (tile + 1 == walk.tiles) {
          IssueQueries(maps, shared, shared.item[(item_count + 1) % kItemSlots]);
        }
      }
      __syncwarp();
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
        const uint64_t a = MakeDescriptor(p + step * 32, 16, kGroupBytes);
        const uint32_t at = values + step * 2 * 4 * kGroupBytes;
        const bool accumulate = !walk.first_in_split || step != 0;
        WgmmaM64N256_SS_MN(output, a, MakeDescriptor(at, kGroupBytes, 4 * kGroupBytes), accumulate);
        if (step % 2 == 1) WgmmaCommit();
      }
      // The last to read keys 0-31 of its columns refills them, then the rest.
      WgmmaWait<1>();
      NamedSync(kOutputsBarrier + group, 128);
      if (warp == 0 && ElectOne()) {
        IssueKeys(args, maps, shared, tile_count + kStages, group, 0);
      }
      __syncwarp();
      WgmmaWait<0>();
      PinRegisters(output);
      const bool ends = walk.Ends(item.key_begin + (tile + 1) * kMlaTileKeys);
      // Not sooner: else the scores could end a second split before every warp has seen the first.
      if (ends) BarrierWait(&shared.split_full, split_count & 1);
      BarrierArriveWarp(&shared.p_empty);
      NamedSync(kOutputsBarrier + group, 128);
      if (warp == 0 && ElectOne()) {
        IssueKeys(args, maps, shared, tile_count + kStages, group, 1);
      }
      __syncwarp();
      walk.first_in_split = false;
      if (!ends) continue;

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
          if (kSharedTiles && IsSecondPart(item)) {
            WaitForResults(args.workspace, TilePlanIndex(item), 1, shared.epoch);
            __syncwarp();
            const uint4* at =
                ResultColumns(args.workspace, -2 - item.partial_unit + warp, group) + lane;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
              const uint4 words = __ldcg(at + 32 * i);
              columns[4 * i] = HalvesOf(words.x);
              columns[4 * i + 1] = HalvesOf(words.y);
              columns[4 * i + 2] = HalvesOf(words.z);
              columns[4 * i + 3] = HalvesOf(words.w);
            }
          }
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
      if (kSharedTiles && IsSecondPart(item)) item.partial_unit = -1;
      if (walk.Emits(item) && warp_rows) {
        if (item.partial_unit >= 0) {
          const size_t unit = walk.PartialRow(item, rows, warp * kMlaUnitRows) / kMlaUnitRows;
          uint4* at = ResultColumns(args.workspace, unit, group) + lane;
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            __stcg(at + 32 * i, make_uint4(BitsOf(columns[4 * i]), BitsOf(columns[4 * i + 1]),
                                           BitsOf(columns[4 * i + 2]), BitsOf(columns[4 * i + 3])));
          }
        } else {
          const float factor[2] = {shared.factor[buffer][row0], shared.factor[buffer][row0 + 8]};
          StoreRows(reinterpret_cast<uint8_t*>(args.output) +
                        (static_cast<size_t>(item.first_row) + row0) * kResultRowBytes + place(),
                    rows - row0, [&](int i) { return OutputPair(columns[i], factor[i % 2]); });
        }
      }
      walk.Advance(item, args.splits);
    }
    if (item.partial_unit >= 0) {
      NamedSync(kResultsBarrier, kOutputThreads);
      if (threadIdx.x == 0) ReportResults(args.workspace, item);
    }
  }
  MergeResults(args, group * 4 + warp, shared.epoch);
}

}  // namespace outrider::cuda
