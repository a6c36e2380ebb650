// A warpgroup of the seesaw MLA decode body that multiplies. Thread layout: that of a wgmma result,
// two rows of a tile per thread, 8 apart.
#pragma once

#include "outrider/kernels/cuda/mla_decode_outputs_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_scores_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_seesaw_block_sm90.cuh"

namespace outrider::cuda {

inline constexpr int kSeesawGroupBarrier = 1;  // and 2: either warpgroup

template <bool kSharedTiles>
class SeesawConsumer {
 public:
  __device__ SeesawConsumer(const MlaKernelArguments& args, MlaSeesawShared& shared)
      : args_(args),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0)) {}

  __device__ __forceinline__ void Run() {
    uint32_t first_count = 0;  // tiles of the items before
    for (uint32_t item_count = 0;; ++item_count) {
      MlaItem item = TakeSeesawItem(shared_, item_count);
      if (item.request < 0) break;
      SplitWalk walk(item, args_.splits);
      // Keys before this one are visible to every row of the tile.
      const int all_visible = args_.visible != nullptr
                                  ? item.context
                                  : item.context + (item.rows >> 8) / args_.heads + 1;
      // Own tiles: every second one from `group` on.
#pragma unroll 1
      for (int tile = group_;; tile += 2) {
        const uint32_t count = first_count + tile;
        const int key0 = item.key_begin + tile * kMlaTileKeys;
        const bool own = tile < walk.tiles;
        const bool first = tile == 0 || walk.Ends(key0);  // the tile begins a split
        if (own) {
          if (group_ == 0 && tile > 0) MultiplyOther(count - 1, walk.first_in_split);
          MultiplyScores(count, item_count);
          Softmax(item, key0, all_visible, count, first);
          HandOver(count, first);
          if (group_ == 1) MultiplyOther(count - 1, walk.first_in_split, true);
          if (tile + 2 >= walk.tiles) BarrierArriveWarp(&shared_.q_empty);
        } else {
          if (tile == 1) BarrierArriveWarp(&shared_.q_empty);
          if (tile > walk.tiles) break;
          MultiplyOther(count - 1, walk.first_in_split);
        }
        if (tile > 0) walk.first_in_split = false;
        if (tile > 0 && Rarely(first)) FinishSplit(item, walk);
        if (!own) break;
        MultiplyOwn(count % kStages, walk.first_in_split);
        const bool ends = walk.Ends(key0 + kMlaTileKeys);
        if (Rarely(ends)) FinishNumbers(item, walk);  // while the products finish
        Release(count % kStages);
        walk.first_in_split = false;
        if (Rarely(ends)) FinishSplit(item, walk);
      }
      first_count += walk.tiles;
      if (item.partial_unit >= 0) {
        NamedSync(kResultsBarrier, kOutputThreads);
        if (threadIdx.x == 0) ReportResults(args_.workspace, item);
      }
      GiveBackSeesawItem(shared_, item_count);
    }
    MergeResults(args_, group_ * 4 + warp_, shared_.epoch);
  }

 private:
  /// The thread's number, each time anew: registers are short.
  static __device__ uint32_t Thread() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  static __device__ uint32_t Row() {
    const uint32_t thread = Thread() % 128;
    return thread / 32 * 16 + thread % 32 / 4;
  }
  static __device__ bool Rarely(bool condition) { return __builtin_expect(condition, 0); }

  // S = Q K^T: first the half of the columns that this warpgroup multiplies as values, which is
  // refilled before the rest.
  __device__ __forceinline__ void MultiplyRotary(int stage, uint32_t parity) {
    const uint64_t q = MakeDescriptor(SharedAddress(shared_.q), 16, 9 * kGroupBytes);
    const uint64_t rotary =
        MakeDescriptor(SharedAddress(shared_.kv[stage]) + 2 * kHalfBytes, 16, kGroupBytes);
    BarrierWait(&shared_.kv_full[stage][2], parity);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaM64N64_SS_KK(scores_, Advance(q, 8 * kGroupBytes + step * 32),
                        Advance(rotary, step * 32), 1);
    }
  }
  __device__ __forceinline__ void MultiplyHalf(int stage, uint32_t parity, int half, bool begins) {
    const uint64_t q =
        MakeDescriptor(SharedAddress(shared_.q) + half * 4 * kGroupBytes, 16, 9 * kGroupBytes);
    const uint64_t keys =
        MakeDescriptor(SharedAddress(shared_.kv[stage]) + half * kHalfBytes, 16, 4 * kGroupBytes);
    BarrierWait(&shared_.kv_full[stage][half], parity);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      const uint32_t at = step / 4 * kGroupBytes + step % 4 * 32;
      WgmmaM64N64_SS_KK(scores_, Advance(q, at), Advance(keys, at), !begins || step != 0);
    }
  }

  __device__ __forceinline__ void MultiplyScores(uint32_t count, uint32_t item_count) {
    const int stage = count % kStages;
    const uint32_t parity = (count / kStages) & 1;
    BarrierWait(&shared_.q_full, item_count & 1);
    PinRegisters(scores_);
    MultiplyHalf(stage, parity, group_, true);
    MultiplyHalf(stage, parity, 1 - group_, false);
    MultiplyRotary(stage, parity);
    WgmmaCommit();
    WgmmaWait<0>();
    PinRegisters(scores_);
  }

  __device__ __forceinline__ void Rescale(float alpha0, float alpha1) {
    if (Rarely(__any_sync(~0u, alpha0 != 1.0f || alpha1 != 1.0f))) {
#pragma unroll
      for (int i = 0; i < 128; ++i) output_[i] *= i & 2 ? alpha1 : alpha0;
    }
  }

  /// The first 16 keys of this warpgroup's half of the values; kValuesStep bytes on, the next.
  __device__ __forceinline__ uint64_t Values(int stage) const {
    return MakeDescriptor(SharedAddress(shared_.kv[stage]) + group_ * kHalfBytes, kGroupBytes,
                          4 * kGroupBytes);
  }
  static constexpr uint32_t kValuesStep = 2 * 4 * kGroupBytes;

  /// Multiplies the other warpgroup's probabilities.
  __device__ __forceinline__ void MultiplyOther(uint32_t count, bool first, bool arrived = false) {
    if (!arrived) BarrierWait(&shared_.p_full, count & 1);
    if (!first) {
      const uint32_t row = Row();
      const float* alpha = shared_.alpha[count % 2];
      Rescale(alpha[row], alpha[row + 8]);
    }
    const uint64_t p = MakeDescriptor(SharedAddress(shared_.kv[count % kStages]) + 2 * kHalfBytes,
                                      16, kGroupBytes);
    const uint64_t values = Values(count % kStages);
    PinRegisters(output_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaM64N256_SS_MN(output_, Advance(p, step * 32), Advance(values, step * kValuesStep),
                         !first || step != 0);
      if (step % 2 == 1) WgmmaCommit();
    }
    Release(count % kStages);
    BarrierArriveWarp(&shared_.rotary_empty[count % kStages]);
  }
  __device__ __forceinline__ void Release(int stage) {
    WgmmaWait<1>();
    BarrierArriveWarp(&shared_.kv_empty[stage][group_][0]);
    WgmmaWait<0>();
    PinRegisters(output_);
    BarrierArriveWarp(&shared_.kv_empty[stage][group_][1]);
  }

  __device__ __forceinline__ void MultiplyOwn(int stage, bool first) {
    if (!first) Rescale(alpha_[0], alpha_[1]);
    const uint64_t values = Values(stage);
    PinRegisters(output_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaM64N256_RS_MN(output_, &packed_[4 * step], Advance(values, step * kValuesStep),
                         !first || step != 0);
      if (step % 2 == 1) WgmmaCommit();
    }
  }

  /// Probabilities of the tile that begins at `key0`.
  __device__ __forceinline__ void Softmax(const MlaItem& item, int key0, int all_visible,
                                          uint32_t count, bool first) {
    if (Rarely(key0 + kMlaTileKeys > all_visible)) Mask(item, key0, count % kStages);
    float top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) top[i] = RowMaximum(scores_, i);
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], lanes));
    }
    const uint32_t row = Row();
    if (group_ == 1) BarrierWait(&shared_.references_full, (count - 1) & 1);
    float before[2] = {-INFINITY, -INFINITY};
    if (!first) {
      before[0] = shared_.reference[row];
      before[1] = shared_.reference[row + 8];
    }
    __syncwarp();  // all lanes have read those before
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float level = top[i] * args_.score_scale;
      const bool grow = level - before[i] > 8.0f;
      const float after = grow ? ceilf(level) : before[i];
      const float shrink = PowerOfTwo(before[i] - after);
      alpha_[i] = grow ? shrink : 1.0f;
      reference_[i] = after == -INFINITY ? 0.0f : after;
      if (Thread() % 4 == 0) shared_.reference[row + 8 * i] = after;
    }
    BarrierArriveWarp(&shared_.references_full);
    sum_[0] = sum_[1] = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const int i = k % 2;
      const int j = k / 4 * 8 + k % 4 / 2 * 4 + 2 * i;
      const float x = Exp2(__fmaf_rn(scores_[j], args_.score_scale, -reference_[i]));
      const float y = Exp2(__fmaf_rn(scores_[j + 1], args_.score_scale, -reference_[i]));
      sum_[i] += x + y;
      packed_[k] = PackBf16(x, y);
    }
  }

  /// Probabilities and numbers to the other warpgroup. Those before have been multiplied by this
  /// one.
  __device__ __forceinline__ void HandOver(uint32_t count, bool first) {
    const uint32_t thread = Thread() % 128;
    NamedSync(kSeesawGroupBarrier + group_, 128);
    // stmatrix: lane l gives the address of row l % 8 of matrix l / 8 (rows +8, then columns +8).
    const uint32_t store_row = thread / 32 * 16 + thread % 16;
    const uint32_t store = SharedAddress(shared_.kv[count % kStages]) + 2 * kHalfBytes +
                           store_row * 128 + ((thread % 32 / 16) ^ (store_row % 8)) * 16;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      StoreMatrix4(store ^ (step * 32), packed_[4 * step], packed_[4 * step + 1],
                   packed_[4 * step + 2], packed_[4 * step + 3]);
    }
    if (thread % 4 == 0) {
      const uint32_t row = Row();
      shared_.alpha[count % 2][row] = alpha_[0];
      shared_.alpha[count % 2][row + 8] = alpha_[1];
    }
    if (group_ == 1) BarrierWait(&shared_.p_full, (count - 1) & 1);
    if (!first) {
      const float2 earlier = shared_.sum[thread];
      sum_[0] = earlier.x * alpha_[0] + sum_[0];
      sum_[1] = earlier.y * alpha_[1] + sum_[1];
    }
    shared_.sum[thread] = make_float2(sum_[0], sum_[1]);
    ProxyFence();
    BarrierArriveWarp(&shared_.p_full);
  }

  __device__ __forceinline__ void Mask(const MlaItem& item, int key0, int stage) {
    const uint32_t lane = Thread() % 32;
    const int rows = item.rows & 255;
    uint64_t seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(static_cast<int>(Row()) + 8 * i, rows - 1);
      const int token = ((item.rows >> 8) + row) / args_.heads;
      const int limit = args_.visible != nullptr ? item.seq_len : item.context + token + 1;
      seen[i] = KeysBefore(limit - key0);
      if (args_.visible != nullptr) {
        seen[i] &=
            MaskedKeys(args_.visible[(item.first_row + row) / args_.heads], item.context - key0);
      }
      seen[i] >>= lane % 4 * 2;
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      if ((seen[j / 2 % 2] >> (j / 4 * 8 + j % 2) & 1) == 0) scores_[j] = -INFINITY;
    }
    if (key0 + kMlaTileKeys > item.seq_len) {
      NamedSync(kSeesawGroupBarrier + group_, 128);  // all have read these keys
      ClearRows(shared_.kv[stage], max(0, item.seq_len - key0), Thread() % 128);
      ProxyFence();
      NamedSync(kSeesawGroupBarrier + group_, 128);
    }
  }

  /// The owner of a split's last tile: what both need to fold its result.
  __device__ __forceinline__ void FinishNumbers(const MlaItem& item, const SplitWalk& walk) {
    BarrierWait(&shared_.split_empty, (split_count_ & 1) ^ 1);
    const bool emits = walk.Emits(item);
    const int rows = item.rows & 255;
    // Where a second part's first split finds what the first part left.
    const int earlier_unit = kSharedTiles ? -2 - item.partial_unit : -1;
    if (earlier_unit >= 0) {
      WaitForResults(args_.workspace, TilePlanIndex(item), 1, shared_.epoch);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = static_cast<int>(Row()) + 8 * i;
      float l = sum_[i];
      l += __shfl_xor_sync(~0u, l, 1);
      l += __shfl_xor_sync(~0u, l, 2);
      // Without visible keys the sum is 0.
      const MlaRowState split = {l == 0.0f ? -INFINITY : reference_[i], l};
      float keep = 0.0f;
      float add = 1.0f;
      MlaRowState state = split;
      if (!walk.first_split) {
        float2 before = shared_.state[row];
        if (earlier_unit >= 0) {
          before = __ldcg(
              &args_.workspace.partial_stats[earlier_unit * kMlaUnitRows + min(row, rows - 1)]);
        }
        state = FoldRow({before.x, before.y}, split, &keep, &add);
      }
      __syncwarp();
      if (Thread() % 4 != 0) continue;
      shared_.normal[row] = PowerOfTwo(-split.exponent());
      shared_.fold[row] = __halves2half2(__float2half_rn(keep), __float2half_rn(add));
      shared_.state[row] = make_float2(state.reference, state.sum);
      if (emits && row < rows) {
        if (item.partial_unit >= 0) {
          args_.workspace.partial_stats[walk.PartialRow(item, rows, row)] =
              make_float2(state.reference, state.sum);
        } else {
          const int at = item.first_row + row;
          float lse;
          shared_.state[row].x =
              FinishRow(state, args_.value_scale, args_.sink, at % args_.heads, &lse);
          args_.lse[at] = lse;
        }
      }
    }
    BarrierArriveWarp(&shared_.split_full);
  }

  /// Folds a split's result and writes what is to be written.
  __device__ __forceinline__ void FinishSplit(MlaItem& item, SplitWalk& walk) {
    const uint32_t lane = Thread() % 32;
    const int rows = item.rows & 255;
    const int row0 = static_cast<int>(Row());
    BarrierWait(&shared_.split_full, split_count_++ & 1);
    const bool second = kSharedTiles && IsSecondPart(item);
    uint32_t* kept = &shared_.columns[0][Thread() % 256];
    if (warp_ * 16 < rows) {  // this warp has rows of the item
#pragma unroll
      for (int i = 0; i < kKeptColumns; ++i)
        columns_[64 - kKeptColumns + i] = HalvesOf(kept[256 * i]);
      const float normal[2] = {shared_.normal[row0], shared_.normal[row0 + 8]};
      if (walk.first_split) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          const float* o = &output_[2 * i];
          columns_[i] = __floats2half2_rn(o[0] * normal[i % 2], o[1] * normal[i % 2]);
        }
      } else {
        if (second) {
          WaitForResults(args_.workspace, TilePlanIndex(item), 1, shared_.epoch);
          __syncwarp();
          const uint4* at =
              ResultColumns(args_.workspace, -2 - item.partial_unit + warp_, group_) + lane;
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const uint4 words = __ldcg(at + 32 * i);
            columns_[4 * i] = HalvesOf(words.x);
            columns_[4 * i + 1] = HalvesOf(words.y);
            columns_[4 * i + 2] = HalvesOf(words.z);
            columns_[4 * i + 3] = HalvesOf(words.w);
          }
        }
        const __half2 fold[2] = {shared_.fold[row0], shared_.fold[row0 + 8]};
        const __half2 keep[2] = {__low2half2(fold[0]), __low2half2(fold[1])};
        const __half2 add[2] = {__high2half2(fold[0]), __high2half2(fold[1])};
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          const float* o = &output_[2 * i];
          columns_[i] = FoldColumns(columns_[i],
                                    __floats2half2_rn(o[0] * normal[i % 2], o[1] * normal[i % 2]),
                                    keep[i % 2], add[i % 2]);
        }
      }
    }
    if (warp_ * 16 < rows) {
#pragma unroll
      for (int i = 0; i < kKeptColumns; ++i)
        kept[256 * i] = BitsOf(columns_[64 - kKeptColumns + i]);
    }
    if (second) item.partial_unit = -1;
    if (walk.Emits(item) && warp_ * 16 < rows) {
      if (item.partial_unit >= 0) {
        const size_t unit = walk.PartialRow(item, rows, warp_ * kMlaUnitRows) / kMlaUnitRows;
        uint4* at = ResultColumns(args_.workspace, unit, group_) + lane;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          __stcg(at + 32 * i, make_uint4(BitsOf(columns_[4 * i]), BitsOf(columns_[4 * i + 1]),
                                         BitsOf(columns_[4 * i + 2]), BitsOf(columns_[4 * i + 3])));
        }
      } else {
        const float factor[2] = {shared_.state[row0].x, shared_.state[row0 + 8].x};
        StoreRows(reinterpret_cast<uint8_t*>(args_.output) +
                      (static_cast<size_t>(item.first_row) + row0) * kResultRowBytes +
                      group_ * (kResultRowBytes / 2) + Thread() % 4 * 16,
                  rows - row0, [&](int i) { return OutputPair(columns_[i], factor[i % 2]); });
      }
    }
    BarrierArriveWarp(&shared_.split_empty);
    walk.Advance(item, args_.splits);
  }

  const MlaKernelArguments& args_;
  MlaSeesawShared& shared_;
  const int group_;
  const int warp_;
  uint32_t split_count_ = 0;
  float output_[128];
  // Two columns each (output_[2 * i] and the next) of the splits folded so far.
  __half2 columns_[64];
  float scores_[32];
  uint32_t packed_[16];  // probabilities of the own tile
  // Of the own tile, by row:
  float alpha_[2];
  float reference_[2];  // log2 domain, integral; 0 without visible keys
  float sum_[2];        // of this thread's keys
};

}  // namespace outrider::cuda
