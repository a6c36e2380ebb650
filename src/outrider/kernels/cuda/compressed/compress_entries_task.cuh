// A thread pools four neighbouring channels over eight tokens. Of ratio 128 sixteen threads share
// the channels' tokens, and eight blocks of a cluster the entry's channels. Sums go over a thread's
// tokens, then over threads and blocks in order.
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/compressed/compress_entries.h"
#include "outrider/kernels/cuda/compressed/published_rounding.cuh"
#include "outrider/kernels/cuda/hopper/cluster.cuh"
#include "outrider/kernels/cuda/rows/row_rotation.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"
#include "outrider/kernels/cuda/sparse/index_keys_task.cuh"

namespace outrider::cuda {

inline constexpr int kPooledTokens = 8;  // of a thread
inline constexpr int kPoolRotary = 64;
inline constexpr int kPoolThreads = 256;

/// Blocks per entry of a launch whose entries pool 8 * kGroups rows.
template <int kGroups>
inline constexpr int kPoolBlocks = kGroups == 1 ? 1 : 8;

struct PoolShared {
  float4 max[kPoolThreads];
  float4 sum[kPoolThreads];
  float4 values[kPoolThreads];
  float squares[kPoolThreads];  // by four channels
  float block_squares;
};

__device__ __forceinline__ float4 Largest(float4 a, float4 b) {
  return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}
/// The softmax's weights of gates, 0 for -infinity.
__device__ __forceinline__ float4 Weights(float4 gate, float4 max) {
  return make_float4(RoundedExp(RoundedSub(gate.x, max.x)), RoundedExp(RoundedSub(gate.y, max.y)),
                     RoundedExp(RoundedSub(gate.z, max.z)), RoundedExp(RoundedSub(gate.w, max.w)));
}
__device__ __forceinline__ float4 MultiplyAdd(float4 v, float4 w, float4 sum) {
  return make_float4(__fmaf_rn(v.x, w.x, sum.x), __fmaf_rn(v.y, w.y, sum.y),
                     __fmaf_rn(v.z, w.z, sum.z), __fmaf_rn(v.w, w.w, sum.w));
}
__device__ __forceinline__ float4 Divide(float4 v, float4 w) {
  return make_float4(__fdiv_rn(v.x, w.x), __fdiv_rn(v.y, w.y), __fdiv_rn(v.z, w.z),
                     __fdiv_rn(v.w, w.w));
}

/// Rotates two pairs of a normalised entry from `column` on, a multiple of 4.
__device__ __forceinline__ float4 RotateEntry(const CompressParams& params, int width, int position,
                                              int column, float4 x) {
  const int pair = (column - (width - kPoolRotary)) / 2;
  if (pair < 0) return x;
  float cos[2];
  float sin[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float angle = __fmul_rn(static_cast<float>(position), params.frequencies[pair + i]);
    cos[i] = __fmul_rn(cosf(angle), params.magnitude);
    sin[i] = __fmul_rn(sinf(angle), params.magnitude);
  }
  return make_float4(RotateFirst(x.x, x.y, cos[0], sin[0]), RotateSecond(x.x, x.y, cos[0], sin[0]),
                     RotateFirst(x.z, x.w, cos[1], sin[1]), RotateSecond(x.z, x.w, cos[1], sin[1]));
}

/// What is added to the gates of the token at `position`.
__device__ __forceinline__ const float* BiasOf(const Compressor& c, int position) {
  return c.bias + static_cast<int64_t>(position % c.ratio) * c.channels();
}

/// Four numbers of the entry in place `place` of a block. Of an index key, which is pooled by one
/// group, a warp has all of them.
template <int kGroups>
__device__ __forceinline__ void StorePooled(const Compressor& c, uint8_t* block, int64_t place,
                                            int column, float4 x) {
  const int64_t at = place * c.width + column;
  const bool is_key = kGroups == 1 && c.width == kIndexDim;
  if (c.rounds) {
    if (is_key) {
      x = RoundFp4Group(Hadamard(x));
    } else if (column < c.width - kPoolRotary) {
      x = RoundFp8Group(x);
    }
  }
  if (!c.codes) {
    StoreFour(reinterpret_cast<__nv_bfloat16*>(block) + at, x);
    return;
  }
  auto* const codes = reinterpret_cast<__nv_fp8_e4m3*>(block) + at;
  if (!is_key) {
    StoreFour(codes, x);
    return;
  }
  const float scale = StoreCodes(codes, x);
  auto* const scales = reinterpret_cast<float*>(block + int64_t{c.entry_block_size} * c.width);
  if (column == 0) scales[place] = scale;
}

/// The entry that `row` completes, if it does: this block's channels of it. All threads.
template <int kGroups>
__device__ __forceinline__ void PoolEntry(const CompressParams& params, const Compressor& c,
                                          int row, int rank, PoolShared& shared) {
  constexpr int kBlocks = kPoolBlocks<kGroups>;
  const int64_t slot = c.entry_slots[row];
  const int end = params.positions[row] + 1;
  if (slot < 0 || end % c.ratio != 0) return;  // all blocks of a cluster alike
  const int first = end - c.ratio;
  const int request = params.rows[row].request;
  const int quads = c.width / 4 / kBlocks;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % quads;
  const int group = thread / quads;
  const bool works = group < kGroups;
  const int column = (rank * quads + quad) * 4;
  const int channels = c.channels();

  float4 values[kPooledTokens];
  float4 gates[kPooledTokens];
  float4 max = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  if (works) {
#pragma unroll
    for (int i = 0; i < kPooledTokens; ++i) {
      const int token = group * kPooledTokens + i;  // of those that are pooled
      const bool own = !c.overlaps || token >= c.ratio;
      const int position = c.overlaps ? first - c.ratio + token : first + token;
      values[i] = make_float4(0, 0, 0, 0);
      gates[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      if (position < 0) continue;
      const int offset = (c.overlaps && own ? c.width : 0) + column;
      const int block = c.state_blocks[static_cast<int64_t>(request) * c.state_blocks_stride +
                                       ((position / c.state_block_size) & c.state_blocks_mask)];
      const auto* of_block = reinterpret_cast<const uint8_t*>(c.states) +
                             static_cast<int64_t>(block) * c.state_block_stride;
      const float* at = reinterpret_cast<const float*>(of_block) +
                        static_cast<int64_t>(position % c.state_block_size) * 2 * channels + offset;
      values[i] = LoadFour(at);
      gates[i] = LoadFour(at + channels) + LoadFour(BiasOf(c, position) + offset);
    }
#pragma unroll
    for (int i = 0; i < kPooledTokens; ++i) max = Largest(max, gates[i]);
  }
  if constexpr (kGroups > 1) {
    shared.max[thread] = max;
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (works) max = Largest(max, shared.max[g * quads + quad]);
    }
  }
  float4 sum = make_float4(0, 0, 0, 0);
  float4 pooled = make_float4(0, 0, 0, 0);
  if (works) {
#pragma unroll
    for (int i = 0; i < kPooledTokens; ++i) {
      const float4 weights = Weights(gates[i], max);
      sum = sum + weights;
      pooled = MultiplyAdd(values[i], weights, pooled);
    }
  }
  if constexpr (kGroups > 1) {
    shared.sum[thread] = sum;
    shared.values[thread] = pooled;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int g = 1; g < kGroups; ++g) {
        sum = sum + shared.sum[g * quads + quad];
        pooled = pooled + shared.values[g * quads + quad];
      }
    }
  }
  const bool finishes = group == 0;
  const float4 mean = Divide(pooled, sum);
  if (finishes) shared.squares[quad] = AddSquares(mean, 0.0F);
  __syncthreads();
  if (thread < 32) {
    float squares = 0.0F;
    for (int i = thread; i < quads; i += 32) squares = __fadd_rn(squares, shared.squares[i]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
    }
    if (thread == 0) shared.block_squares = squares;
  }
  float squares = 0.0F;
  if constexpr (kBlocks > 1) {
    ClusterArrive();
    ClusterWait();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      squares = __fadd_rn(squares, LoadRemote(&shared.block_squares, block));
    }
    ClusterArrive();  // has read the others' sums
  } else {
    __syncthreads();
    squares = shared.block_squares;
  }
  if (finishes) {
    const float factor = NormFactor(squares, c.width, params.epsilon);
    const float4 normal = LoadFour(c.norm + column) * (mean * factor);
    const int64_t entry = slot / c.ratio;
    uint8_t* const block =
        static_cast<uint8_t*>(c.entries) + entry / c.entry_block_size * c.entry_block_stride;
    StorePooled<kGroups>(c, block, entry % c.entry_block_size, column,
                         RotateEntry(params, c.width, first, column, normal));
  }
  if constexpr (kBlocks > 1) ClusterWait();  // the others may still be reading this block's sum
}

}  // namespace outrider::cuda
