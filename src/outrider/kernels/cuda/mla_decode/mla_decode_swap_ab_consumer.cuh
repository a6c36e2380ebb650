// A consumer warpgroup of the swap-AB MLA decode body. Thread layout: a warp holds 16 keys of the
// scores and 16 of every 64 columns of the output; lane l has rows 8 j + 2 (l % 4) and one more of
// the tile, the same ones in both.
#pragma once

#include "outrider/kernels/cuda/hopper/wgmma_f16.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_queries.cuh"

namespace outrider::cuda {

/// Where a consumer is in the ring: tiles of both consumers passed, and the parity of its own next
/// use of each stage and, in bit kTurn, of its next turn to fold.
struct SwapAbRing {
  static constexpr int kTurn = 31;
  uint32_t position = 0;
  uint32_t parities = 0;
};

template <int kRows>
class SwapAbConsumer {
 public:
  static constexpr int kPerThread = kRows / 4;  // rows that a lane has
  static constexpr int kBlockRegisters = kRows / 2;
  static constexpr int kLoads = 2;  // of four matrices per batch of products; two products each

  __device__ SwapAbConsumer(const MlaKernelArguments& args, MlaSwapAbShared<kRows>& shared,
                            const MlaItem& item)
      : args_(args),
        shared_(shared),
        item_(item),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0)),
        lane_(threadIdx.x % 32),
        all_visible_(args.visible != nullptr
                         ? item.context
                         : item.context + item.row_in_request() / args.heads + 1) {}

  /// All tiles of the item that are this warpgroup's.
  __device__ __forceinline__ void Run(SwapAbRing* ring) {
    const bool relaxed = args_.splits.base == 0;
    SplitPair pair(item_, args_.splits);
    for (; !pair.Done(item_); pair.Advance(item_, args_.splits)) {
      const int tiles = group_ == 0 ? pair.tiles[0] : pair.tiles[1];
      const int begin = group_ == 0 ? pair.begin[0] : pair.begin[1];
      const int end = group_ == 0 ? pair.end[0] : pair.end[1];
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        const int stage =
            (ring->position + pair.Position(group_, tile)) % MlaSwapAbShared<kRows>::kStages;
        BarrierWait(&shared_.kv_full[group_][stage], ring->parities >> stage & 1);
        ring->parities ^= 1u << stage;
        RunTile(stage, begin + tile * kMlaTileKeys, tile == 0);
      }
      ring->position += pair.tiles[0] + pair.tiles[1];
      if (tiles == 0) continue;
      const int index = pair.index + group_;
      const bool last = end >= item_.key_end;
      const bool separate = item_.key_begin > 0 && !relaxed;  // every split is a result
      FinishSplit(ring, index, index == 0 || separate, last || separate, separate ? index : 0);
    }
  }

 private:
  __device__ int Row(int i) const { return i / 2 * 8 + lane_ % 4 * 2 + i % 2; }

  __device__ __forceinline__ void RunTile(int stage, int key0, bool first) {
    if (key0 + kMlaTileKeys > item_.seq_len) ClearKeys(stage, max(0, item_.seq_len - key0));
    MultiplyKeys(stage);
    Mask(key0);
    Softmax(first);
    MultiplyValues(stage, first);
    BarrierArriveWarp(&shared_.kv_empty[stage]);
  }

  /// Values past the end of a request may be anything, and 0 * NaN must not happen. Each warp
  /// clears the keys whose scores it computes.
  __device__ __forceinline__ void ClearKeys(int stage, int begin) {
    for (int key = warp_ * 16; key < warp_ * 16 + 16; ++key) {
      if (key < begin) continue;
      uint8_t* group = shared_.kv[stage] + (key / 8 * 4 + lane_ / 8) * kGroupBytes + key % 8 * 128;
      reinterpret_cast<uint4*>(group)[lane_ % 8] = make_uint4(0, 0, 0, 0);
    }
    ProxyFence();
    __syncwarp();
  }

  /// S^T = K Q^T: 36 products of 16 dimensions, in batches of four; the operands of a batch are
  /// prepared while the one before multiplies.
  __device__ __forceinline__ void MultiplyKeys(int stage) {
    const uint32_t kv = SharedAddress(shared_.kv[stage]);
    const uint64_t q = MakeDescriptor(SharedAddress(shared_.q), 16, kQGroupBytes);
    // Matrix l / 8: keys + 8 * (l / 8 % 2), 16 bytes + l / 16.
    const int row = lane_ % 8;
    const int key_group = warp_ * 2 + lane_ / 8 % 2;
    const uint32_t latent = kv + key_group * 4 * kGroupBytes + row * 128;
    const uint32_t x = (lane_ / 16 ^ row) * 16;
    const uint32_t rotary = kv + kLatentBytes + key_group * 512 + row * 64;
    const uint32_t rotary_x = (lane_ / 16 ^ (row / 2)) * 16;
    auto load = [&](int pair, uint32_t(&raw)[4]) {  // chunks 2 * pair and one more
      LoadMatrix4(raw, pair < 16 ? latent + pair / 4 * kGroupBytes + (pair % 4 * 32 ^ x)
                                 : rotary + ((pair - 16) * 32 ^ rotary_x));
    };
    uint32_t raw[kLoads][4];
    uint32_t a[2][2 * kLoads][4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) load(i, raw[i]);
    PinRegisters(scores_);
#pragma unroll
    for (int batch = 0; batch < 18 / kLoads; ++batch) {
      uint32_t(&operand)[2 * kLoads][4] = a[batch % 2];
      if (batch >= 2) WgmmaWait<1>();
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        E4m3ToF16(raw[i][0], &operand[2 * i][0], &operand[2 * i][2]);
        E4m3ToF16(raw[i][1], &operand[2 * i][1], &operand[2 * i][3]);
        E4m3ToF16(raw[i][2], &operand[2 * i + 1][0], &operand[2 * i + 1][2]);
        E4m3ToF16(raw[i][3], &operand[2 * i + 1][1], &operand[2 * i + 1][3]);
      }
      if (batch + 1 < 18 / kLoads) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) load((batch + 1) * kLoads + i, raw[i]);
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2 * kLoads; ++i) {
        const int step = batch * 2 * kLoads + i;
        WgmmaRegisterA(scores_, operand[i], q + (step / 4 * kGroupBytes + step % 4 * 32) / 16,
                       step != 0);
      }
      WgmmaCommit();
    }
    WgmmaWait<0>();
    PinRegisters(scores_);
  }

  /// Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void Mask(int key0) {
    if (key0 + kMlaTileKeys <= all_visible_) return;
    const int row_in_request = item_.row_in_request();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = min(Row(i), item_.num_rows() - 1);
      int limit = item_.seq_len;
      uint32_t visible = ~0u;
      if (args_.visible != nullptr) {
        visible = args_.visible[(item_.first_row + row) / args_.heads];
      } else {
        limit = item_.context + (row_in_request + row) / args_.heads + 1;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = key0 + warp_ * 16 + half * 8 + lane_ / 4;
        bool seen = key < limit;
        if (args_.visible != nullptr) {
          const int offset = key - item_.context;
          seen = seen && (offset < 0 || (offset < 32 && (visible >> offset & 1)));
        }
        if (!seen) scores_[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
      }
    }
  }

  /// References, probabilities to shared memory, sums; rescales the output.
  __device__ __forceinline__ void Softmax(bool first) {
    float scale[kPerThread];
    float reference[kPerThread];
    float alpha[kPerThread];
    bool grows = first;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      scale[i] = shared_.row_scale[Row(i)];
      reference[i] = first ? -INFINITY : Reference(i);
      alpha[i] = 1.0f;
      const float top = fmaxf(scores_[i / 2 * 4 + i % 2], scores_[i / 2 * 4 + i % 2 + 2]);
      grows = grows || Grows(top, reference[i], scale[i]);
    }
    // Nothing depends on the maxima unless some row's reference moves.
    if (NamedSyncOr(kConsumerBarrier + group_, 128, grows)) {
      MoveReferences(first, scale, reference, alpha);
    }
    const int store_row = lane_ / 16 * 8 + lane_ % 8;
    const uint32_t store = SharedAddress(shared_.p[group_]) + lane_ / 16 * kGroupBytes +
                           store_row % 8 * 128 +
                           (((warp_ * 2 + lane_ / 8 % 2) ^ (store_row % 8)) * 16);
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 2) {
      uint32_t packed[4];
      float probability[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int i = (j + k / 4) * 2 + k % 2;
        const float negative = reference[i] == -INFINITY ? 0.0f : -reference[i] * scale[i];
        probability[k] = Exp2(__fmaf_rn(scores_[j * 4 + k], scale[i], negative));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        packed[k] = PackF16(probability[2 * k], probability[2 * k + 1]);
        const int i = j * 2 + k;
        const float* two = &probability[k / 2 * 4 + k % 2];
        const float part = two[0] + two[2];
        Sum(i) = first ? part : Sum(i) * alpha[i] + part;
      }
      StoreMatrix4Transposed(store + j * kGroupBytes, packed[0], packed[1], packed[2], packed[3]);
    }
    ProxyFence();
  }

  static __device__ bool Grows(float top, float reference, float scale) {
    return (top - reference) * scale > 15.0f;
  }

  /// The tile's maximum of each row over all warps; where it has grown by more than 2^15 (f16 holds
  /// 2^15 times a probability), it becomes the reference. Each row decides for itself.
  __device__ __forceinline__ void MoveReferences(bool first, const float (&scale)[kPerThread],
                                                 float (&reference)[kPerThread],
                                                 float (&alpha)[kPerThread]) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      float top = fmaxf(scores_[i / 2 * 4 + i % 2], scores_[i / 2 * 4 + i % 2 + 2]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
      }
      if (lane_ < 4) shared_.top[group_][Row(i)][warp_] = top;
    }
    NamedSync(kConsumerBarrier + group_, 128);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const float4 tops = *reinterpret_cast<const float4*>(shared_.top[group_][Row(i)]);
      const float top = fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w));
      if (Grows(top, reference[i], scale[i])) {
        alpha[i] = Exp2((reference[i] - top) * scale[i]);
        reference[i] = top;
      }
      if (lane_ < 4) Reference(i) = reference[i];
    }
    if (first) return;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int k = 0; k < kBlockRegisters; ++k) output_[block][k] *= alpha[k / 4 * 2 + k % 2];
    }
  }

  // What a lane keeps of its rows from tile to tile; in shared memory, registers are short. The
  // reference (unscaled) is the same in all lanes of a row, the sum is that of the lane's keys.
  __device__ float& Reference(int i) { return shared_.reference[group_][warp_][Row(i)]; }
  __device__ float& Sum(int i) { return shared_.lane_sum[i][threadIdx.x]; }

  /// O^T += V^T P^T: for each half of the keys and each 64 columns two products of 16 keys.
  /// ldmatrix.trans moves pairs of bytes; the bytes of two keys are then put beside each other, so
  /// row r of the product is column 2 r, and r + 8 is column 2 r + 1.
  __device__ __forceinline__ void MultiplyValues(int stage, bool first) {
    const uint32_t kv = SharedAddress(shared_.kv[stage]);
    const uint64_t p = MakeDescriptor(SharedAddress(shared_.p[group_]), 16, kGroupBytes);
    const int row = lane_ % 8;
    const uint32_t base = kv + lane_ / 8 * 4 * kGroupBytes + row * 128;
    const uint32_t swizzled[2] = {base + ((warp_ ^ row) * 16), base + (((warp_ + 4) ^ row) * 16)};
    auto load = [&](int unit, uint32_t(&raw)[4]) {  // unit: half * 8 + block
      LoadMatrix4Transposed(
          raw, swizzled[unit % 2] + unit / 8 * 16 * kGroupBytes + unit % 8 / 2 * kGroupBytes);
    };
    uint32_t raw[kLoads][4];
    uint32_t a[2][2 * kLoads][4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) load(i, raw[i]);
    NamedSync(kConsumerBarrier + group_, 128);  // all probabilities are there
#pragma unroll
    for (int block = 0; block < 8; ++block) PinRegisters(output_[block]);
#pragma unroll
    for (int batch = 0; batch < 16 / kLoads; ++batch) {
      uint32_t(&operand)[2 * kLoads][4] = a[batch % 2];
      if (batch >= 2) WgmmaWait<1>();
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          uint32_t* to = &operand[2 * i + m / 2][m % 2 * 2];
          E4m3ToF16(__byte_perm(raw[i][m], 0, 0x3120), to, to + 1);
        }
      }
      if (batch + 1 < 16 / kLoads) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) load((batch + 1) * kLoads + i, raw[i]);
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2 * kLoads; ++i) {
        const int unit = batch * kLoads + i / 2;
        const int step = unit / 8 * 2 + i % 2;
        WgmmaRegisterA(output_[unit % 8], operand[i], p + step * 2, step != 0 || !first);
      }
      WgmmaCommit();
    }
    WgmmaWait<0>();
#pragma unroll
    for (int block = 0; block < 8; ++block) PinRegisters(output_[block]);
  }

  /// The split's sums; folds it with the splits before; hands on or writes out.
  __device__ __forceinline__ void FinishSplit(SwapAbRing* ring, int index, bool alone, bool emits,
                                              int emitted);
  __device__ __forceinline__ void WritePartial(const float (&m)[kPerThread],
                                               const float (&sum)[kPerThread], int emitted);
  __device__ __forceinline__ void WriteOutput(int index);

  const MlaKernelArguments& args_;
  MlaSwapAbShared<kRows>& shared_;
  const MlaItem& item_;
  const int group_;
  const int warp_;
  const int lane_;
  const int all_visible_;  // keys before this one are visible to every row
  float scores_[kBlockRegisters];
  float output_[8][kBlockRegisters];  // by 64 columns
};

}  // namespace outrider::cuda
