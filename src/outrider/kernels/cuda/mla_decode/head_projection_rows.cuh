// What the forms of the projections of heads share: the product, the weights of a warp, the
// rotation of the queries' last columns.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/mla_decode/head_projection.h"

namespace outrider::cuda {

inline constexpr int kTileTokens = 16;

__device__ __forceinline__ void Multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Rotates the last 64 values of a head's vectors: a warp per token, a pair per lane, kBatch
/// tokens at a time so that their loads are on their way together.
template <int kWarps, int kBatch>
__device__ __forceinline__ void RotateTokens(const HeadProjectionParams& params,
                                             const RotaryTable& rotary, int head, int begin,
                                             int end) {
  const int pair = threadIdx.x % 32;
  const int first = rotary.interleaved ? 2 * pair : pair;
  const int second = rotary.interleaved ? 2 * pair + 1 : pair + 32;
  const auto* x =
      static_cast<const __nv_bfloat16*>(params.x) + head * params.x_head_stride + params.k;
  auto* y = static_cast<__nv_bfloat16*>(params.y) + head * params.y_head_stride + params.n;
#pragma unroll 1
  for (int token0 = begin + static_cast<int>(threadIdx.x) / 32; token0 < end;
       token0 += kWarps * kBatch) {
    float a[kBatch], b[kBatch], cos[kBatch], sin[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      // Past the end: the last token, not written.
      const int token = min(token0 + i * kWarps, end - 1);
      const int64_t entry = rotary.positions != nullptr ? rotary.positions[token] : token;
      a[i] = __bfloat162float(x[token * params.x_token_stride + first]);
      b[i] = __bfloat162float(x[token * params.x_token_stride + second]);
      cos[i] = rotary.cos[entry * 32 + pair];
      sin[i] = rotary.sin[entry * 32 + pair];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int token = token0 + i * kWarps;
      if (token >= end) break;
      __nv_bfloat16* to = y + token * params.y_token_stride;
      to[first] = __float2bfloat16_rn(__fsub_rn(__fmul_rn(a[i], cos[i]), __fmul_rn(b[i], sin[i])));
      to[second] = __float2bfloat16_rn(__fadd_rn(__fmul_rn(a[i], sin[i]), __fmul_rn(b[i], cos[i])));
    }
  }
}

/// A lane's weights of `head`: kBlocks products of 8 columns each, from column0 and k0 on. Column i
/// of product b is column kBlocks * 2 * (i / 2) + 2 * b + i % 2 of the warp's.
template <int kBlocks, int kChunks>
__device__ __forceinline__ void LoadHeadWeights(const HeadProjectionParams& params, int head,
                                                int column0, int k0, uint4 (&w)[kBlocks][kChunks]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int column = column0 + lane / 8 * (2 * kBlocks) + 2 * b + lane / 4 % 2;
    const auto* from = static_cast<const __nv_bfloat16*>(params.w) +
                       (static_cast<int64_t>(head) * params.n + column) * params.k + k0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      w[b][chunk] = __ldg(reinterpret_cast<const uint4*>(from + chunk * 32));
    }
  }
}

}  // namespace outrider::cuda
