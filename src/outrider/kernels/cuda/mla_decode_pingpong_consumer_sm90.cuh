// A warpgroup of the ping-pong body MLA decode body that multiplies. Thread layout: that of a wgmma
// result, two rows of a tile per thread, 8 apart.
#pragma once

#include "outrider/kernels/cuda/mla_decode_fold_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_pingpong_block_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_tile_sm90.cuh"

namespace outrider::cuda {

inline constexpr int kPingPongGroupBarrier = 1;  // and 2: either warpgroup

/// A thread's columns of the splits folded so far: most of them in registers.
struct MlaPingPongColumns {
  static constexpr int kInRegisters = 64 - kKeptColumns;
  MlaPingPongShared& shared;
  __half2 values[kInRegisters];

  __device__ __forceinline__ __half2 Get(int i) const {
    return i < kInRegisters ? values[i] : HalvesOf(shared.columns[i - kInRegisters][FreshThread()]);
  }
  __device__ __forceinline__ void Set(int i, __half2 columns) {
    if (i < kInRegisters) {
      values[i] = columns;
    } else {
      shared.columns[i - kInRegisters][FreshThread()] = BitsOf(columns);
    }
  }
};

template <bool kSharedTiles>
class PingPongConsumer {
 public:
  __device__ PingPongConsumer(const MlaKernelArguments& args, MlaPingPongShared& shared)
      : args_(args),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0)),
        columns_{shared, {}} {}

  __device__ __forceinline__ void Run() {
    uint32_t first_count = 0;  // tiles of the items before
    for (uint32_t item_count = 0;; ++item_count) {
      MlaItem item = TakePingPongItem(shared_, item_count);
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
        if (tile >= walk.tiles) {
          if (tile == walk.tiles) {  // the other has the item's last tile
            IssueOther(count - 1, walk.first_in_split);
            ReleaseOther(count - 1);
            if (tile == 1) BarrierArriveWarp(&shared_.q_empty);
            FinishSplit(item, walk);
          }
          break;
        }
        const int key0 = item.key_begin + tile * kMlaTileKeys;
        // Splits are whole pairs of tiles: before an item's last tile only odd ones end them.
        const bool begins = tile == 0 || walk.Ends(key0);  // the tile begins a split
        if (group_ == 0 && tile > 0) {
          IssueOther(count - 1, walk.first_in_split);
          ReleaseOther(count - 1);
          walk.first_in_split = false;
        }
        BarrierWait(&shared_.q_full, item_count & 1);
        // First the half of the columns that this warpgroup has as values: it is refilled first.
        IssueScores(shared_, count % kStages, (count / kStages) & 1, group_, scores_);
        if (tile > 0 && Rarely(begins)) FinishSplit(item, walk);  // while the scores multiply
        WgmmaWait<0>();
        PinRegisters(scores_);
        if (tile + 2 >= walk.tiles) BarrierArriveWarp(&shared_.q_empty);
        Softmax(item, key0, all_visible, count, begins);
        HandOver(count, begins);
        const bool ends = walk.Ends(key0 + kMlaTileKeys);
        if (group_ == 1) {
          IssueOther(count - 1, walk.first_in_split);
          if (Rarely(ends)) FinishNumbers(item, walk);  // while those multiply
          ReleaseOther(count - 1);
          walk.first_in_split = false;
        }
        IssueOwn(count % kStages, walk.first_in_split);
        if (group_ == 0 && Rarely(ends)) FinishNumbers(item, walk);
        Release(count % kStages);
        walk.first_in_split = false;
        if (Rarely(ends)) FinishSplit(item, walk);
      }
      first_count += walk.tiles;
      if (item.partial_unit >= 0) {
        NamedSync(kResultsBarrier, kOutputThreads);
        if (threadIdx.x == 0) ReportResults(args_.workspace, item);
      }
      GiveBackPingPongItem(shared_, item_count);
    }
    MergeResults(args_, group_ * 4 + warp_, shared_.epoch, false);
  }

 private:
  static __device__ uint32_t Row() {
    const uint32_t thread = FreshThread() % 128;
    return thread / 32 * 16 + thread % 32 / 4;
  }
  static __device__ bool Rarely(bool condition) { return __builtin_expect(condition, 0); }

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
  __device__ __forceinline__ void IssueOther(uint32_t count, bool first) {
    WaitForProbabilities(count);
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
  }
  __device__ __forceinline__ void ReleaseOther(uint32_t count) {
    Release(count % kStages);
    BarrierArriveWarp(&shared_.rotary_empty[count % kStages]);
  }
  __device__ __forceinline__ void WaitForProbabilities(uint32_t count) {
    BarrierWait(&shared_.p_full[count % kStages], (count / kStages) & 1);
  }
  __device__ __forceinline__ void Release(int stage) {
    WgmmaWait<1>();
    BarrierArriveWarp(&shared_.kv_empty[stage][group_][0]);
    WgmmaWait<0>();
    PinRegisters(output_);
    BarrierArriveWarp(&shared_.kv_empty[stage][group_][1]);
  }

  __device__ __forceinline__ void IssueOwn(int stage, bool first) {
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
                                          uint32_t count, bool begins) {
    if (Rarely(key0 + kMlaTileKeys > all_visible)) Mask(item, key0, count % kStages);
    float top[2];
    RowMaxima(scores_, top);
    const uint32_t row = Row();
    // Those of the tile before, which this one goes on from or (where it begins a split) replaces.
    if (count > 0) BarrierWait(&shared_.references_full, (count - 1) & 1);
    float before[2] = {-INFINITY, -INFINITY};
    if (!begins) {
      before[0] = shared_.reference[row];
      before[1] = shared_.reference[row + 8];
    }
    __syncwarp();  // all lanes have read those before
    float negative[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      reference_[i] = MoveReference(before[i], top[i] * args_.score_scale, &alpha_[i]);
      negative[i] = reference_[i] == -INFINITY ? 0.0f : -reference_[i];
      if (FreshThread() % 4 == 0) shared_.reference[row + 8 * i] = reference_[i];
    }
    BarrierArriveWarp(&shared_.references_full);
    Probabilities(scores_, args_.score_scale, negative, packed_, sum_);
  }

  /// Probabilities, alphas and sums to the other warpgroup.
  __device__ __forceinline__ void HandOver(uint32_t count, bool begins) {
    const uint32_t thread = FreshThread() % 128;
    NamedSync(kPingPongGroupBarrier + group_, 128);  // all scores are done with columns 512-575
    StoreProbabilities(SharedAddress(shared_.kv[count % kStages]) + 2 * kHalfBytes, thread,
                       packed_);
    if (thread % 4 == 0) {
      const uint32_t row = Row();
      shared_.alpha[count % 2][row] = alpha_[0];
      shared_.alpha[count % 2][row + 8] = alpha_[1];
    }
    if (group_ == 1) WaitForProbabilities(count - 1);  // and sums; warpgroup 0 has done so
    if (!begins) {
      const float2 earlier = shared_.sum[thread];
      sum_[0] = earlier.x * alpha_[0] + sum_[0];
      sum_[1] = earlier.y * alpha_[1] + sum_[1];
    }
    shared_.sum[thread] = make_float2(sum_[0], sum_[1]);
    ProxyFence();
    BarrierArriveWarp(&shared_.p_full[count % kStages]);
  }

  __device__ __forceinline__ void Mask(const MlaItem& item, int key0, int stage) {
    const uint32_t lane = FreshThread() % 32;
    const int rows = item.rows & 255;
    uint64_t seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(static_cast<int>(Row()) + 8 * i, rows - 1);
      const int token = ((item.rows >> 8) + row) / args_.heads;
      const int limit = args_.visible != nullptr ? item.seq_len : item.context + token + 1;
      const uint32_t visible =
          args_.visible != nullptr ? args_.visible[(item.first_row + row) / args_.heads] : 0;
      seen[i] = SeenKeys(key0, limit, args_.visible != nullptr, visible, item.context);
    }
    HideKeys(scores_, seen, lane);
    if (key0 + kMlaTileKeys > item.seq_len) {
      NamedSync(kPingPongGroupBarrier + group_, 128);  // all have read these keys
      ClearRows(shared_.kv[stage], max(0, item.seq_len - key0), FreshThread() % 128);
      ProxyFence();
      NamedSync(kPingPongGroupBarrier + group_, 128);
    }
  }

  /// The owner of a split's last tile: what both need to fold its result.
  __device__ __forceinline__ void FinishNumbers(const MlaItem& item, const SplitWalk& walk) {
    BarrierWait(&shared_.split_empty, (split_count_ & 1) ^ 1);
    if (EarlierUnit<kSharedTiles>(item) >= 0) {
      WaitForResults(args_.workspace, TilePlanIndex(item), 1, shared_.epoch);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t row = Row() + 8 * i;
      MlaRowState state = shared_.state[row];
      FinishRowNumbers<kSharedTiles>(args_, item, walk, row, reference_[i], sum_[i], &state,
                                     shared_.split);
      __syncwarp();  // all lanes have read the state before
      if (FreshThread() % 4 == 0) shared_.state[row] = state;
    }
    BarrierArriveWarp(&shared_.split_full);
  }

  /// Folds a split's result and writes what is to be written.
  __device__ __forceinline__ void FinishSplit(MlaItem& item, SplitWalk& walk) {
    BarrierWait(&shared_.split_full, split_count_++ & 1);
    const bool has_rows = warp_ * 16 < (item.rows & 255);
    if (has_rows) {
      FoldColumns<kSharedTiles>(args_, item, walk, shared_.epoch, group_, Row(), shared_.split,
                                output_, columns_);
    }
    if (kSharedTiles && IsSecondPart(item)) item.partial_unit = -1;
    if (has_rows && walk.Last(item) && item.partial_unit < 0) {
      WriteOutput(args_, item, group_, Row(), shared_.split, columns_);
    }
    BarrierArriveWarp(&shared_.split_empty);
    walk.Advance(item, args_.splits);
  }

  const MlaKernelArguments& args_;
  MlaPingPongShared& shared_;
  const int group_;
  const int warp_;
  uint32_t split_count_ = 0;
  float output_[128];
  MlaPingPongColumns columns_;
  float scores_[32];
  uint32_t packed_[16];  // probabilities of the own tile
  // Of the own tile, by row:
  float alpha_[2];
  float reference_[2];  // log2 domain, integral
  float sum_[2];        // of this thread's keys
};

}  // namespace outrider::cuda
