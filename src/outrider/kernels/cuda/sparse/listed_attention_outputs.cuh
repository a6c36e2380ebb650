// The two output warpgroups of listed attention: O = O * alpha + P V for 256 columns each, the fold
// at a split's end and the writing of results.
#pragma once

#include "outrider/kernels/cuda/hopper/wgmma.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_fold.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_walk.cuh"

namespace outrider::cuda {

template <typename Form, bool kSharedTiles>
__device__ __forceinline__ void AccumulateListed(const typename Form::Arguments& listed,
                                                 const MlaTensorMaps& maps,
                                                 ListedShared<Form>& shared) {
  const MlaKernelArguments& args = listed.mla;
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;  // and row0 + 8
  const uint32_t p = SharedAddress(shared.p);
  float output[128];
  __half2 columns[64];  // of the splits folded so far, two columns each
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  uint32_t item_count = 0;
  for (;; ++item_count) {
    // Published before the probabilities of the item before were handed over.
    MlaItem item = TakeItem(shared.item[item_count % kItemSlots]);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const bool has_rows = warp * 16 < item.num_rows();  // this warp has rows of the item
    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = static_cast<int>(tile_count % kStages);
      BarrierWait(&shared.p_full, tile_count & 1);
      // The scores of the item's last tile are done with its queries.
      if (group == 1 && warp == 1 && tile + 1 == walk.tiles && ElectOne()) {
        IssueListedQueries(maps, shared, shared.item[(item_count + 1) % kItemSlots]);
      }
      __syncwarp();
      const float alpha0 = __uint_as_float(uint32_t{shared.alpha[row0]} << 16);
      const float alpha1 = __uint_as_float(uint32_t{shared.alpha[row0 + 8]} << 16);
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
        const uint64_t b = MakeDescriptor(at, kGroupBytes, 4 * kGroupBytes);
        WgmmaM64N128_SS_MN<0>(output, a, b, accumulate);
        WgmmaM64N128_SS_MN<64>(output, a, Advance(b, 2 * kGroupBytes), accumulate);
        if (step % 2 == 1) WgmmaCommit();
      }
      WgmmaWait<1>();
      BarrierArriveWarp(&shared.kv_free[stage][0]);
      WgmmaWait<0>();
      PinRegisters(output);
      BarrierArriveWarp(&shared.kv_free[stage][1]);
      const bool ends = walk.Ends(item.key_begin + (tile + 1) * kMlaTileKeys);
      // Not sooner: else the scores could end a second split before every warp has seen the first.
      if (ends) BarrierWait(&shared.split_full, split_count & 1);
      BarrierArriveWarp(&shared.p_empty);
      walk.first_in_split = false;
      if (!ends) continue;

      const MlaSplitNumbers& numbers = shared.split[split_count++ & 1];
      if (has_rows) {
        FoldColumns<kSharedTiles>(args, item, walk, shared.epoch, group, row0, numbers, output,
                                  columns);
      }
      if (kSharedTiles && item.is_second_part()) item.MakeOutput();
      if (has_rows && walk.Last(item) && !item.leaves_partials()) {
        WriteOutput(args, item, group, row0, numbers, columns, Form::Results(listed));
      }
      walk.Advance(item, args.splits);
    }
    if (item.leaves_partials()) {
      NamedSync(kResultsBarrier, kOutputThreads);
      if (threadIdx.x == 0) ReportResults(args.workspace, item);
    }
  }
  MergeResults(args, group * 4 + warp, shared.epoch, item_count == 0, Form::Results(listed));
}

}  // namespace outrider::cuda
