// The scores warpgroup of the MLA decode kernel: S = Q K^T, references, probabilities, sums, and at
// a split's end the weights with which the outputs are folded. Thread layout: that of a wgmma
// result, two rows and 16 keys of a tile per thread.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_fold.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_loads.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_tile.cuh"

namespace outrider::cuda {

template <bool kSharedTiles>
__device__ __forceinline__ void ComputeScores(const MlaKernelArguments& args, MlaShared& shared,
                                              LoadWalk& loads) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  const int lane = thread % 32;
  const int row0 = warp * 16 + lane / 4;  // and row0 + 8
  const uint32_t p = SharedAddress(shared.p);

  float scores[32];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    // Published before the probabilities of the item before were handed over.
    MlaItem item = TakeItem(shared.item[item_count % kItemSlots]);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.num_rows();
    const int row_in_request = item.row_in_request();
    int limit[2];          // keys before this one may be visible
    uint32_t visible[2];   // mask over keys from `context`
    float reference[2];    // of the current split, log2 domain, integral
    float sum[2];          // of this thread's columns
    MlaRowState state[2];  // of the splits folded so far
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row0 + 8 * i, rows - 1);
      const int token = (row_in_request + row) / args.heads;
      limit[i] = args.visible != nullptr ? item.seq_len : item.context + token + 1;
      visible[i] = args.visible != nullptr ? args.visible[(item.first_row + row) / args.heads] : 0;
      reference[i] = -INFINITY;
      sum[i] = 0.0f;
    }
    // Keys before this one are visible to every row of the tile.
    const int all_visible =
        args.visible != nullptr ? item.context : item.context + row_in_request / args.heads + 1;
    BarrierWait(&shared.q_full, item_count & 1);

    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = tile_count % kStages;
      IssueScores(shared, stage, (tile_count / kStages) & 1, tile & 1, scores);
      if (warp == 0) loads.Step(args, shared, tile_count);  // while the products finish
      WgmmaWait<0>();
      PinRegisters(scores);

      const int key0 = item.key_begin + tile * kMlaTileKeys;
      if (key0 + kMlaTileKeys > all_visible) {
        uint64_t seen[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          seen[i] = SeenKeys(key0, limit[i], args.visible != nullptr, visible[i], item.context);
        }
        HideKeys(scores, seen, lane);
        if (key0 + kMlaTileKeys > item.seq_len) {
          NamedSync(kScoresBarrier, kScoreThreads);  // all have read these keys
          ClearRows(shared.kv[stage], max(0, item.seq_len - key0), thread);
        }
      }

      float top[2];
      RowMaxima(scores, top);
      float alpha[2];
      float negative[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        reference[i] = MoveReference(reference[i], top[i] * args.score_scale, &alpha[i]);
        negative[i] = reference[i] == -INFINITY ? 0.0f : -reference[i];
      }
      uint32_t packed[16];
      float part[2];
      Probabilities(scores, args.score_scale, negative, packed, part);
      // Hand over once the outputs have taken the tile before.
      BarrierWait(&shared.p_empty, (tile_count & 1) ^ 1);
      if (lane % 4 == 0) {
        shared.alpha[row0] = alpha[0];
        shared.alpha[row0 + 8] = alpha[1];
      }
      StoreProbabilities(p, thread, packed);
      ProxyFence();
      BarrierArriveWarp(&shared.p_full);
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] = sum[i] * alpha[i] + part[i];
      if (walk.Ends(key0 + kMlaTileKeys)) {
        MlaSplitNumbers& numbers = shared.split[split_count++ & 1];
        if (EarlierUnit<kSharedTiles>(item) >= 0) {
          WaitForResults(args.workspace, TilePlanIndex(item), 1, shared.epoch);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          FinishRowNumbers<kSharedTiles>(args, item, walk, row0 + 8 * i, reference[i], sum[i],
                                         &state[i], numbers);
          reference[i] = -INFINITY;
          sum[i] = 0.0f;
        }
        if (kSharedTiles && item.is_second_part()) item.MakeOutput();
        walk.Advance(item, args.splits);
        BarrierArriveWarp(&shared.split_full);
      }
    }
  }
}

}  // namespace outrider::cuda
