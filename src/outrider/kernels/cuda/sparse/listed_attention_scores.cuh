// The scores warpgroup of listed attention: S = Q K^T over all dimensions, references,
// probabilities and sums (the arithmetic of mla_decode_tile.cuh), the numbers of a split's
// end.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_fold.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_tile.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_walk.cuh"

namespace outrider::cuda {

/// Adds 256 columns of the entries in `stage` to the scores, once they have been gathered: they
/// were written by ordinary copies, which the tensor cores' reads must come behind.
template <typename Form>
__device__ __forceinline__ void MultiplyGatheredHalf(ListedShared<Form>& shared, int stage,
                                                     uint32_t parity, int half,
                                                     float (&scores)[32]) {
  const uint64_t q = MakeDescriptor(SharedAddress(shared.q) + half * 4 * kGroupBytes, 16,
                                    ListedShared<Form>::kRowGroupBytes);
  const uint64_t entries =
      MakeDescriptor(SharedAddress(shared.kv[stage]) + half * kHalfBytes, 16, 4 * kGroupBytes);
  BarrierWait(&shared.kv_full[stage][half], parity);
  ProxyFence();
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const uint32_t at = step / 4 * kGroupBytes + step % 4 * 32;
    WgmmaM64N64_SS_KK(scores, Advance(q, at), Advance(entries, at), half != 0 || step != 0);
  }
}

/// Issues a tile's scores, one chain over the columns in order.
template <typename Form>
__device__ __forceinline__ void IssueGatheredScores(ListedShared<Form>& shared, int stage,
                                                    uint32_t parity, float (&scores)[32]) {
  PinRegisters(scores);
  WgmmaFence();
  MultiplyGatheredHalf(shared, stage, parity, 0, scores);
  MultiplyGatheredHalf(shared, stage, parity, 1, scores);
  if constexpr (ListedShared<Form>::kHasRotary) {
    const uint64_t q = MakeDescriptor(SharedAddress(shared.q) + 8 * kGroupBytes, 16,
                                      ListedShared<Form>::kRowGroupBytes);
    const uint64_t rotary =
        MakeDescriptor(SharedAddress(shared.kv[stage]) + 2 * kHalfBytes, 16, kGroupBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaM64N64_SS_KK(scores, Advance(q, step * 32), Advance(rotary, step * 32), 1);
    }
  }
  WgmmaCommit();
}

template <typename Form, bool kSharedTiles>
__device__ __forceinline__ void ScoreListed(const typename Form::Arguments& listed,
                                            ListedShared<Form>& shared,
                                            ListWalk<Form>& walk_ahead) {
  const MlaKernelArguments& args = listed.mla;
  const int thread = static_cast<int>(threadIdx.x) % 128;
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
    float reference[2] = {-INFINITY, -INFINITY};  // of the current split, log2 domain, integral
    float sum[2] = {0.0f, 0.0f};                  // of this thread's columns
    MlaRowState state[2];                         // of the splits folded so far
    BarrierWait(&shared.q_full, item_count & 1);

    for (int tile = 0; tile < walk.tiles; ++tile, ++tile_count) {
      const int stage = static_cast<int>(tile_count % kStages);
      IssueGatheredScores(shared, stage, (tile_count / kStages) & 1, scores);
      if (warp == 0) walk_ahead.Step(listed, shared, tile_count);  // while the products finish
      WgmmaWait<0>();
      PinRegisters(scores);

      const int place = item.key_begin + tile * kMlaTileKeys;
      if (place + kMlaTileKeys > item.seq_len) {
        // Places behind the list's end hold zeros.
        uint64_t seen[2] = {KeysBefore(item.seq_len - place), KeysBefore(item.seq_len - place)};
        HideKeys(scores, seen, lane);
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
        shared.alpha[row0] = static_cast<uint16_t>(__float_as_uint(alpha[0]) >> 16);
        shared.alpha[row0 + 8] = static_cast<uint16_t>(__float_as_uint(alpha[1]) >> 16);
      }
      StoreProbabilities(p, thread, packed);
      ProxyFence();
      BarrierArriveWarp(&shared.p_full);
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] = sum[i] * alpha[i] + part[i];
      if (!walk.Ends(place + kMlaTileKeys)) continue;
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

}  // namespace outrider::cuda
