// From a tile of 64 keys to probabilities, in the bf16 MLA decode kernel: scores, masks, maxima,
// references. Thread layout: that of a wgmma result, two rows of the tile, 8 apart, and 16 of its
// keys per thread.
#pragma once

#include "outrider/kernels/cuda/hopper/wgmma.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_block.cuh"

namespace outrider::cuda {

/// Adds columns 0-255 (half 0) or 256-511 of the tile in `stage` to the scores, once they are
/// there.
__device__ __forceinline__ void MultiplyHalf(MlaShared& shared, int stage, uint32_t parity,
                                             int half, bool begins, float (&scores)[32]) {
  const uint64_t q =
      MakeDescriptor(SharedAddress(shared.q) + half * 4 * kGroupBytes, 16, 9 * kGroupBytes);
  const uint64_t keys =
      MakeDescriptor(SharedAddress(shared.kv[stage]) + half * kHalfBytes, 16, 4 * kGroupBytes);
  BarrierWait(&shared.kv_full[stage][half], parity);
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const uint32_t at = step / 4 * kGroupBytes + step % 4 * 32;
    WgmmaM64N64_SS_KK(scores, Advance(q, at), Advance(keys, at), !begins || step != 0);
  }
}

/// Issues a tile's scores, Q K^T over half `first_half` of columns 0-511, the other half and
/// columns 512-575. Even tiles of a request begin with half 0, odd ones with half 1. Waits for
/// parts of the keys stand between products of one chain: ptxas puts a warpgroup.arrive behind each
/// of them (C7519), which orders registers and waits for no product.
__device__ __forceinline__ void IssueScores(MlaShared& shared, int stage, uint32_t parity,
                                            int first_half, float (&scores)[32]) {
  PinRegisters(scores);
  WgmmaFence();
  MultiplyHalf(shared, stage, parity, first_half, true, scores);
  MultiplyHalf(shared, stage, parity, 1 - first_half, false, scores);
  const uint64_t q = MakeDescriptor(SharedAddress(shared.q) + 8 * kGroupBytes, 16, 9 * kGroupBytes);
  const uint64_t rotary =
      MakeDescriptor(SharedAddress(shared.kv[stage]) + 2 * kHalfBytes, 16, kGroupBytes);
  BarrierWait(&shared.kv_full[stage][2], parity);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    WgmmaM64N64_SS_KK(scores, Advance(q, step * 32), Advance(rotary, step * 32), 1);
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

/// Which of the tile's keys from `key0` on a row sees: those before `limit`, of which `masked` rows
/// see what `visible` shows, whose bit 0 is for key `context`.
__device__ __forceinline__ uint64_t SeenKeys(int key0, int limit, bool masked, uint32_t visible,
                                             int context) {
  const uint64_t seen = KeysBefore(limit - key0);
  return masked ? seen & MaskedKeys(visible, context - key0) : seen;
}
/// Takes the keys that its two rows do not see out of a thread's scores.
__device__ __forceinline__ void HideKeys(float (&scores)[32], uint64_t (&seen)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) seen[i] >>= lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    if ((seen[j / 2 % 2] >> (j / 4 * 8 + j % 2) & 1) == 0) scores[j] = -INFINITY;
  }
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

/// The largest scores of a thread's two rows, among the four lanes that share them.
__device__ __forceinline__ void RowMaxima(const float (&scores)[32], float (&top)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) top[i] = RowMaximum(scores, i);
#pragma unroll
  for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], lanes));
  }
}

/// A row's reference after a tile whose largest score is `level` (log2 domain), and the factor for
/// what was multiplied with the one before. -inf: no visible key so far.
__device__ __forceinline__ float MoveReference(float before, float level, float* alpha) {
  const bool grow = level - before > 8.0f;
  const float after = grow ? ceilf(level) : before;
  const float shrink = PowerOfTwo(before - after);
  *alpha = grow ? shrink : 1.0f;
  return after;
}

/// Probabilities, as bf16 pairs for wgmma, and a thread's sums of either row. `negative`: the
/// references' negative, 0 without visible keys.
__device__ __forceinline__ void Probabilities(const float (&scores)[32], float scale,
                                              const float (&negative)[2], uint32_t (&packed)[16],
                                              float (&sum)[2]) {
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int i = k % 2;
    const int j = k / 4 * 8 + k % 4 / 2 * 4 + 2 * i;
    const float x = Exp2(__fmaf_rn(scores[j], scale, negative[i]));
    const float y = Exp2(__fmaf_rn(scores[j + 1], scale, negative[i]));
    sum[i] += x + y;
    packed[k] = PackBf16(x, y);
  }
}

/// Stores a tile's probabilities as [8 row groups][1024] at `place` (shared memory, a multiple of
/// 1024). stmatrix: lane l gives the address of row l % 8 of matrix l / 8 (rows +8, then columns
/// +8). `thread`: of the warpgroup.
__device__ __forceinline__ void StoreProbabilities(uint32_t place, uint32_t thread,
                                                   const uint32_t (&packed)[16]) {
  const uint32_t row = thread / 32 * 16 + thread % 16;
  const uint32_t at = place + row * 128 + ((thread % 32 / 16) ^ (row % 8)) * 16;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    StoreMatrix4(at ^ (step * 32), packed[4 * step], packed[4 * step + 1], packed[4 * step + 2],
                 packed[4 * step + 3]);
  }
}

}  // namespace outrider::cuda
