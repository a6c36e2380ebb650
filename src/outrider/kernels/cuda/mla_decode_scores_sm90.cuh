// The scores warpgroup of the MLA decode kernel: S = Q K^T, references, probabilities, sums, and at
// a split's end the weights with which the outputs are folded. Thread layout: that of a wgmma
// result, two rows and 16 keys of a tile per thread.
#pragma once

#include "outrider/kernels/cuda/mla_decode_loads_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_merge_sm90.cuh"
#include "outrider/kernels/cuda/wgmma_sm90.cuh"

namespace outrider::cuda {

__device__ __forceinline__ void MultiplyScores(MlaShared& shared, int stage, uint32_t parity,
                                               float (&scores)[32]) {
  const uint32_t keys = SharedAddress(shared.kv[stage]);
  const uint64_t q = MakeDescriptor(SharedAddress(shared.q), 16, 9 * kGroupBytes);
  const uint64_t half = MakeDescriptor(keys, 16, 4 * kGroupBytes);
  const uint64_t rotary = MakeDescriptor(keys + 2 * kHalfBytes, 16, kGroupBytes);
  PinRegisters(scores);
  WgmmaFence();
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    BarrierWait(&shared.kv_full[stage][part], parity);
#pragma unroll
    for (int step = 0; step < (part < 2 ? 16 : 4); ++step) {
      const uint64_t a = Advance(q, (part * 4 + step / 4) * kGroupBytes + step % 4 * 32);
      const uint64_t b =
          part < 2 ? Advance(half, part * kHalfBytes + step / 4 * kGroupBytes + step % 4 * 32)
                   : Advance(rotary, step * 32);
      WgmmaM64N64_SS_KK(scores, a, b, part != 0 || step != 0);
    }
  }
  WgmmaCommit();
}

/// A bit for each of a tile's keys: the first `count`.
__device__ __forceinline__ uint64_t KeysBefore(int count) {
  return count >= 64 ? ~0ull : (1ull << max(0, count)) - 1;
}
/// Those that a mask shows whose bit 0 is for key `begin` of the tile; all before that.
__device__ __forceinline__ uint64_t MaskedKeys(uint32_t visible, int begin) {
  const uint64_t bits = visible;
  return KeysBefore(begin) | (begin >= 64  ? 0
                              : begin >= 0 ? bits << begin
                                           : bits >> min(63, -begin));
}

/// The largest of a thread's 16 scores of its row `i`.
__device__ __forceinline__ float RowMaximum(const float (&scores)[32], int i) {
  float pair[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) pair[j] = fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
#pragma unroll
    for (int j = 0; j < step; ++j) pair[j] = fmaxf(pair[j], pair[j + step]);
  }
  return pair[0];
}

/// Values past the end of a request may be anything, and 0 * NaN must not happen.
__device__ __forceinline__ void ClearRows(uint8_t* kv, int begin, int thread) {
  for (int at = begin * 64 + thread; at < 64 * 64; at += kScoreThreads) {
    const int row = at / 64;
    const int chunk = at % 64;
    *reinterpret_cast<uint4*>(kv + chunk / 32 * kHalfBytes + row / 8 * 4 * kGroupBytes +
                              chunk % 32 / 8 * kGroupBytes + row % 8 * 128 + chunk % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
}

template <bool kSharedTiles>
__device__ __forceinline__ void ComputeScores(const MlaKernelArguments& args, MlaShared& shared,
                                              LoadWalk& loads) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  const int lane = thread % 32;
  const int row0 = warp * 16 + lane / 4;  // and row0 + 8
  // stmatrix: lane l gives the address of row l % 8 of matrix l / 8 (rows +8, then columns +8).
  const int store_row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const uint32_t store_base = SharedAddress(shared.p) + store_row * 128;
  const int store_chunk = lane / 16;

  float scores[32];
  uint32_t tile_count = 0;
  uint32_t split_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    // Published before the probabilities of the item before were handed over.
    MlaItem item = TakeItem(shared, item_count);
    if (item.request < 0) break;
    SplitWalk walk(item, args.splits);
    const int rows = item.rows & 255;
    const int row_in_request = item.rows >> 8;
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
      MultiplyScores(shared, stage, (tile_count / kStages) & 1, scores);
      if (warp == 0) loads.Step(args, shared, tile_count);  // while the products finish
      WgmmaWait<0>();
      PinRegisters(scores);

      const int key0 = item.key_begin + tile * kMlaTileKeys;
      if (key0 + kMlaTileKeys > all_visible) {
        uint64_t seen[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          seen[i] = KeysBefore(limit[i] - key0);
          if (args.visible != nullptr) seen[i] &= MaskedKeys(visible[i], item.context - key0);
          seen[i] >>= lane % 4 * 2;
        }
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          if ((seen[j / 2 % 2] >> (j / 4 * 8 + j % 2) & 1) == 0) scores[j] = -INFINITY;
        }
        if (key0 + kMlaTileKeys > item.seq_len) {
          NamedSync(kScoresBarrier, kScoreThreads);  // all have read these keys
          ClearRows(shared.kv[stage], max(0, item.seq_len - key0), thread);
        }
      }

      float top[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) top[i] = RowMaximum(scores, i);
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], lanes));
      }
      float alpha[2];
      float negative[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float level = top[i] * args.score_scale;
        const float before = reference[i];
        const bool grow = level - before > 8.0f;
        reference[i] = grow ? ceilf(level) : before;
        const float shrink = PowerOfTwo(before - reference[i]);
        alpha[i] = grow ? shrink : 1.0f;
        negative[i] = reference[i] == -INFINITY ? 0.0f : -reference[i];
      }
      uint32_t packed[16];
      float part[2][2] = {};
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        const int i = k % 2;
        const int j = k / 4 * 8 + k % 4 / 2 * 4 + 2 * i;
        const float x = Exp2(__fmaf_rn(scores[j], args.score_scale, negative[i]));
        const float y = Exp2(__fmaf_rn(scores[j + 1], args.score_scale, negative[i]));
        part[i][0] += x;
        part[i][1] += y;
        packed[k] = PackBf16(x, y);
      }
      // Hand over once the outputs have taken the tile before.
      BarrierWait(&shared.p_empty, (tile_count & 1) ^ 1);
      if (lane % 4 == 0) {
        shared.alpha[row0] = alpha[0];
        shared.alpha[row0 + 8] = alpha[1];
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        StoreMatrix4(store_base + (((2 * step + store_chunk) ^ (store_row % 8)) * 16),
                     packed[4 * step], packed[4 * step + 1], packed[4 * step + 2],
                     packed[4 * step + 3]);
      }
      ProxyFence();
      BarrierArriveWarp(&shared.p_full);
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] = sum[i] * alpha[i] + (part[i][0] + part[i][1]);
      if (walk.Ends(key0 + kMlaTileKeys)) {
        const int buffer = split_count++ & 1;
        const bool emits = walk.Emits(item);
        // Where a second part's first split finds what the first part left.
        const int earlier_unit = kSharedTiles ? -2 - item.partial_unit : -1;
        if (earlier_unit >= 0) {
          WaitForResults(args.workspace, TilePlanIndex(item), 1, shared.epoch);
          item.partial_unit = -1;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = row0 + 8 * i;
          float l = sum[i];
          l += __shfl_xor_sync(~0u, l, 1);
          l += __shfl_xor_sync(~0u, l, 2);
          const MlaRowState split = {reference[i], l};
          reference[i] = -INFINITY;
          sum[i] = 0.0f;
          float keep = 0.0f;
          float add = 1.0f;
          if (earlier_unit >= 0) {
            const int at = earlier_unit * kMlaUnitRows + min(row, rows - 1);
            const float2 earlier = __ldcg(&args.workspace.partial_stats[at]);
            state[i] = {earlier.x, earlier.y};
          }
          state[i] = walk.first_split ? split : FoldRow(state[i], split, &keep, &add);
          if (lane % 4 != 0) continue;
          shared.normal[buffer][row] = PowerOfTwo(-split.exponent());
          shared.fold[buffer][row] = make_float2(keep, add);
          if (emits && row < rows) {
            if (item.partial_unit >= 0) {
              args.workspace.partial_stats[walk.PartialRow(item, rows, row)] =
                  make_float2(state[i].reference, state[i].sum);
            } else {
              const int at = item.first_row + row;
              float lse;
              shared.factor[buffer][row] =
                  FinishRow(state[i], args.value_scale, args.sink, at % args.heads, &lse);
              args.lse[at] = lse;
            }
          }
        }
        walk.Advance(item, args.splits);
        BarrierArriveWarp(&shared.split_full);
      }
    }
  }
}

}  // namespace outrider::cuda
