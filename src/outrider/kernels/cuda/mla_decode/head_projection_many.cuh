// The projections of heads for many tokens, which go through shared memory, so that a block reads
// each of them once. Warps of a block have 32 columns each, or a quarter of k of them; products and
// sums are those of head_projection.cu.
#pragma once

#include "outrider/kernels/cuda/mla_decode/head_projection_rows.cuh"

namespace outrider::cuda {

/// Sizes of a block; kChunks: pieces of 32 k that a warp has, kParts: warps that share columns.
template <int kChunks, int kParts>
struct ManyShape {
  static constexpr int kStages = 3;
  static constexpr int kBlocks = 4;                     // products of 8 columns, of a warp
  static constexpr int kWarps = kChunks <= 4 ? 16 : 8;  // more weights, fewer warps
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kGroups = kWarps / kParts;  // of warps with the same columns
  static constexpr int kBlockColumns = kGroups * kBlocks * 8;
  static constexpr int kRowBytes = kChunks * kParts * 64;
  static constexpr int kStride = kRowBytes + 64;  // between tokens, against bank conflicts
  static constexpr int kStageBytes = kTileTokens * kStride;
  static constexpr int kResults = 4;  // of four values, of a lane
  static constexpr int kPartBytes = kParts == 1 ? 0 : kWarps * kResults * 32 * 16;
  static constexpr int kSharedBytes = kStages * kStageBytes + kPartBytes;
};

template <int kChunks, int kParts>
__global__ void __launch_bounds__(ManyShape<kChunks, kParts>::kThreads, 1)
    ProjectManyKernel(const HeadProjectionParams params, const RotaryTable rotary,
                      int tokens_per_block) {
  using Shape = ManyShape<kChunks, kParts>;
  constexpr int kBlocks = Shape::kBlocks, kResults = Shape::kResults;
  extern __shared__ __align__(16) uint8_t memory[];
  LaunchDependents();
  const int thread = threadIdx.x;
  const int lane = thread % 32, warp = thread / 32;
  const int group = warp / kParts, part = warp % kParts;
  const int head = blockIdx.y;
  const int column0 = static_cast<int>(blockIdx.x) * Shape::kBlockColumns + group * kBlocks * 8;
  const bool has_columns = column0 < params.n;
  uint4 w[kBlocks][kChunks] = {};
  if (has_columns) LoadHeadWeights(params, head, column0, part * kChunks * 32 + lane % 4 * 8, w);
  WaitForPriorGrid();
  const int tokens =
      params.true_rows != nullptr ? min(params.num_tokens, *params.true_rows) : params.num_tokens;
  const int begin = static_cast<int>(blockIdx.z) * tokens_per_block;
  const int end = min(begin + tokens_per_block, tokens);
  if (begin >= end) return;
  const auto* const x = static_cast<const uint8_t*>(params.x) + head * params.x_head_stride * 2;
  // A warp copies whole tokens; those past the end are the last one, and write nothing.
  const auto copy = [&](int tile) {
    constexpr int kPieces = Shape::kRowBytes / 16;
    const int token0 = begin + tile * kTileTokens;
    const uint32_t to =
        SharedAddress(memory) + tile % Shape::kStages * Shape::kStageBytes + lane * 16;
    if (token0 < end) {
#pragma unroll
      for (int row = warp; row < kTileTokens; row += Shape::kWarps) {
        const auto* const from =
            x + min(token0 + row, end - 1) * params.x_token_stride * 2 + lane * 16;
#pragma unroll
        for (int piece = 0; piece < kPieces; piece += 32) {
          if (piece + lane >= kPieces) break;
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + row * Shape::kStride +
                                                                         piece * 16),
                       "l"(from + piece * 16)
                       : "memory");
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  copy(0);
  copy(1);
  if (params.rotary != nullptr && blockIdx.x == 0) {
    RotateTokens<Shape::kWarps, 2>(params, rotary, head, begin, end);
  }
  auto* const y = static_cast<__nv_bfloat16*>(params.y) + head * params.y_head_stride + column0 +
                  lane % 4 * (2 * kBlocks);
  auto* const parts = reinterpret_cast<float4*>(memory + Shape::kStages * Shape::kStageBytes) +
                      group * kParts * kResults * 32;
#pragma unroll 1
  for (int tile = 0; begin + tile * kTileTokens < end; ++tile) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();  // all have this tile, and have read the one before and its parts
    copy(tile + 2);
    const uint8_t* const rows = memory + tile % Shape::kStages * Shape::kStageBytes +
                                lane / 4 * Shape::kStride + part * kChunks * 64 + lane % 4 * 16;
    float sums[kBlocks][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 a = *reinterpret_cast<const uint4*>(rows + chunk * 64);
      const uint4 b = *reinterpret_cast<const uint4*>(rows + 8 * Shape::kStride + chunk * 64);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const uint4 c = w[i][chunk];
        Multiply(sums[i], a.x, b.x, a.y, b.y, c.x, c.y);
        Multiply(sums[i], a.z, b.z, a.w, b.w, c.z, c.w);
      }
    }
    // Result r: columns 4 (r % 2) and so on of the lane's eight, of token lane / 4 + 8 (r / 2).
    const int token0 = begin + tile * kTileTokens + lane / 4;
    const auto store = [&](int r, float4 v) {
      const int token = token0 + 8 * (r / 2);
      if (token >= end || !has_columns) return;
      *reinterpret_cast<uint2*>(y + token * params.y_token_stride + r % 2 * 4) =
          make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
    };
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
      const int i = 2 * (r / 2), block = 2 * (r % 2);
      const float4 result = make_float4(sums[block][i], sums[block][i + 1], sums[block + 1][i],
                                        sums[block + 1][i + 1]);
      if constexpr (kParts == 1) {
        store(r, result);
      } else {
        parts[(part * kResults + r) * 32 + lane] = result;
      }
    }
    if constexpr (kParts > 1) {
      static_assert(kParts == kResults);
      __syncthreads();
      float4 sum = parts[part * 32 + lane];
#pragma unroll
      for (int i = 1; i < kParts; ++i) {
        const float4 more = parts[(i * kResults + part) * 32 + lane];
        sum = make_float4(__fadd_rn(sum.x, more.x), __fadd_rn(sum.y, more.y),
                          __fadd_rn(sum.z, more.z), __fadd_rn(sum.w, more.w));
      }
      store(part, sum);
    }
  }
}

}  // namespace outrider::cuda
