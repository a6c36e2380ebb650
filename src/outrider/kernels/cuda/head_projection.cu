// Weights stay in registers: a warp holds 16 columns of one head's matrix (32 with many tokens,
// which are read half as often then) over all of k, or over a quarter where k is above 256, and
// multiplies them by 16 tokens at a time with mma.sync m16n8k16, as many tokens as its block is
// given. All of a warp's weights are asked for at once, before the kernel before this one has
// finished, since nothing in a step changes them: with few tokens the time is one trip to memory.
//
// Both operands come straight from global memory, 16 bytes per load: a lane's eight values of 32 k
// are the two pairs that it must hold in each of two products; since x and w are split alike, sums
// are over the right pairs. The columns are dealt to the products so that a lane's results are
// neighbours.
#include <cuda_bf16.h>

#include <algorithm>

#include "outrider/kernels/cuda/dependent_launch.h"
#include "outrider/kernels/cuda/head_projection.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/refused_argument.h"

namespace outrider::cuda {
namespace {

constexpr int kTileTokens = 16;
constexpr int kWarps = 4;

__device__ __forceinline__ void Multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Launch {
  int column_blocks;     // then, with a rotary part, one more for it
  int tokens_per_block;  // a multiple of kTileTokens
};

/// Rotates the last 64 values of a head's vectors: a warp per token, a pair per lane, a batch of
/// tokens at a time so that their loads are on their way together.
__device__ __forceinline__ void RotateTokens(const HeadProjectionParams& params,
                                             const RotaryTable& rotary, int head, int begin,
                                             int end) {
  constexpr int kBatch = 8;
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

/// kChunks: pieces of 32 k that a warp has. kParts: warps that share the columns, each with a part
/// of k of its own; 1 or kWarps. kPairs: of products of 8 columns each.
template <int kChunks, int kParts, int kPairs>
__global__ void __launch_bounds__(32 * kWarps)
    ProjectKernel(const HeadProjectionParams params, const RotaryTable rotary,
                  const Launch launch) {
  constexpr int kBlocks = 2 * kPairs;
  constexpr int kWarpColumns = 8 * kBlocks;
  constexpr int kResults = 2 * kPairs;  // of four values, of a lane: token by token
  // By turns.
  __shared__ float4 partial[2][kParts == 1 ? 1 : kParts][kParts == 1 ? 1 : kResults][32];
  LaunchDependents();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int head = blockIdx.y;
  const bool rotates = static_cast<int>(blockIdx.x) == launch.column_blocks;
  const int part = kParts == 1 ? 0 : warp;
  const int column0 =
      (static_cast<int>(blockIdx.x) * (kWarps / kParts) + (kParts == 1 ? warp : 0)) * kWarpColumns;
  const bool has_columns = !rotates && column0 < params.n;
  const int k0 = part * kChunks * 32 + lane % 4 * 8;
  // Column i of product b is column kBlocks * 2 * (i / 2) + 2 * b + i % 2 of the warp's.
  uint4 w[kBlocks][kChunks];
  if (has_columns) {
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
  WaitForPriorGrid();
  const int tokens =
      params.true_rows != nullptr ? min(params.num_tokens, *params.true_rows) : params.num_tokens;
  const int begin = static_cast<int>(blockIdx.z) * launch.tokens_per_block;
  const int end = min(begin + launch.tokens_per_block, tokens);
  if (rotates) {
    RotateTokens(params, rotary, head, begin, end);
    return;
  }
  if (kParts == 1 && !has_columns) return;

  const auto* x = static_cast<const __nv_bfloat16*>(params.x) + head * params.x_head_stride + k0;
  auto* y = static_cast<__nv_bfloat16*>(params.y) + head * params.y_head_stride + column0 +
            lane % 4 * (2 * kBlocks);
  struct Tokens {
    uint4 a[kChunks];  // of token lane / 4 of a tile
    uint4 b[kChunks];  // of the one 8 further on
  };
  auto load = [&](int token0) {
    // Rows past the end read the last one and write nothing.
    const auto* row0 = x + min(token0 + lane / 4, end - 1) * params.x_token_stride;
    const auto* row1 = x + min(token0 + lane / 4 + 8, end - 1) * params.x_token_stride;
    Tokens tokens_of;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      tokens_of.a[chunk] = *reinterpret_cast<const uint4*>(row0 + chunk * 32);
      tokens_of.b[chunk] = *reinterpret_cast<const uint4*>(row1 + chunk * 32);
    }
    return tokens_of;
  };
  // The next tile is on its way while one is multiplied, where there are registers for it.
  constexpr bool kAhead = kChunks * (kBlocks + 4) <= 48;
  if (begin >= end) return;
  Tokens now = load(begin);
  int turn = 0;
#pragma unroll 1
  for (int token0 = begin; token0 < end; token0 += kTileTokens) {
    Tokens next;
    if (kAhead && token0 + kTileTokens < end) next = load(token0 + kTileTokens);
    float sums[kBlocks][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const uint4 c = w[i][chunk];
        const uint4 a = now.a[chunk];
        const uint4 b = now.b[chunk];
        Multiply(sums[i], a.x, b.x, a.y, b.y, c.x, c.y);
        Multiply(sums[i], a.z, b.z, a.w, b.w, c.z, c.w);
      }
    }
    // Result r: columns 4 (r % kPairs) and so on of the lane's, of token lane / 4 + 8 (r / kPairs).
    auto store = [&](int r, float4 v) {
      const int token = token0 + lane / 4 + 8 * (r / kPairs);
      if (token >= end) return;
      *reinterpret_cast<uint2*>(y + token * params.y_token_stride + r % kPairs * 4) =
          make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
    };
    float4 result[kResults];
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
      const int i = 2 * (r / kPairs);
      const int block = 2 * (r % kPairs);
      result[r] = make_float4(sums[block][i], sums[block][i + 1], sums[block + 1][i],
                              sums[block + 1][i + 1]);
    }
    if constexpr (kParts == 1) {
#pragma unroll
      for (int r = 0; r < kResults; ++r) store(r, result[r]);
    } else {
#pragma unroll
      for (int r = 0; r < kResults; ++r) partial[turn][part][r][lane] = result[r];
      __syncthreads();
      static_assert(kResults <= kWarps);
      if (warp < kResults) {
        float4 sum = partial[turn][0][warp][lane];
#pragma unroll
        for (int i = 1; i < kParts; ++i) {
          const float4 more = partial[turn][i][warp][lane];
          sum = make_float4(__fadd_rn(sum.x, more.x), __fadd_rn(sum.y, more.y),
                            __fadd_rn(sum.z, more.z), __fadd_rn(sum.w, more.w));
        }
        store(warp, sum);
      }
      turn ^= 1;
    }
    if constexpr (kAhead) {
      now = next;
    } else if (token0 + kTileTokens < end) {
      now = load(token0 + kTileTokens);
    }
  }
}

void Check(const HeadProjectionParams& params) {
  if (params.num_tokens < 0 || params.heads <= 0) {
    RefuseArgument("ProjectHeads: ", params.num_tokens, " tokens and ", params.heads,
                   " heads: tokens must not be negative, heads at least 1");
  }
  const bool one_chain = params.k > 0 && params.k <= 256 && params.k % 32 == 0;
  const bool four_chains = params.k > 256 && params.k <= 1024 && params.k % 128 == 0;
  if (!one_chain && !four_chains) {
    RefuseArgument("ProjectHeads: k is ", params.k,
                   ", it must be a multiple of 32 up to 256 or of 128 up to 1024");
  }
  if (params.n <= 0 || params.n % 32 != 0) {
    RefuseArgument("ProjectHeads: n is ", params.n, ", it must be a multiple of 32");
  }
  if (params.x_token_stride % 8 != 0 || params.x_head_stride % 8 != 0) {
    RefuseArgument("ProjectHeads: strides of x are ", params.x_token_stride, " and ",
                   params.x_head_stride, ", they must be multiples of 8");
  }
  if (params.y_token_stride % 4 != 0 || params.y_head_stride % 4 != 0) {
    RefuseArgument("ProjectHeads: strides of y are ", params.y_token_stride, " and ",
                   params.y_head_stride, ", they must be multiples of 4");
  }
}

template <int kChunks, int kParts, int kPairs>
cudaError_t RunPairs(const HeadProjectionParams& params, cudaStream_t stream) {
  constexpr int kBlockColumns = kWarps / kParts * 16 * kPairs;
  constexpr int kMultiprocessors = 132;
  Launch launch;
  launch.column_blocks = (params.n + kBlockColumns - 1) / kBlockColumns;
  // Enough blocks for four on every multiprocessor, if there are tokens for them.
  const int tiles = (params.num_tokens + kTileTokens - 1) / kTileTokens;
  const int wanted = std::max(1, 4 * kMultiprocessors / (launch.column_blocks * params.heads));
  const int tiles_per_block = (tiles + std::min(tiles, wanted) - 1) / std::min(tiles, wanted);
  launch.tokens_per_block = tiles_per_block * kTileTokens;
  const int blocks_x = launch.column_blocks + (params.rotary != nullptr ? 1 : 0);
  const int blocks_z = (tiles + tiles_per_block - 1) / tiles_per_block;
  return LaunchDependent(ProjectKernel<kChunks, kParts, kPairs>,
                         dim3(blocks_x, params.heads, blocks_z), dim3(32 * kWarps), 0, stream,
                         params, params.rotary != nullptr ? *params.rotary : RotaryTable{}, launch);
}

template <int kChunks, int kParts>
cudaError_t Run(const HeadProjectionParams& params, cudaStream_t stream) {
  return params.num_tokens >= 64 ? RunPairs<kChunks, kParts, 2>(params, stream)
                                 : RunPairs<kChunks, kParts, 1>(params, stream);
}

template <int kParts>
cudaError_t RunParts(const HeadProjectionParams& params, cudaStream_t stream) {
  switch (params.k / kParts / 32) {
    case 1:
      return Run<1, kParts>(params, stream);
    case 2:
      return Run<2, kParts>(params, stream);
    case 3:
      return Run<3, kParts>(params, stream);
    case 4:
      return Run<4, kParts>(params, stream);
    case 5:
      return Run<5, kParts>(params, stream);
    case 6:
      return Run<6, kParts>(params, stream);
    case 7:
      return Run<7, kParts>(params, stream);
    default:
      return Run<8, kParts>(params, stream);
  }
}

}  // namespace

cudaError_t ProjectHeads(const HeadProjectionParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_tokens == 0) return cudaSuccess;
  return params.k <= 256 ? RunParts<1>(params, stream) : RunParts<kWarps>(params, stream);
}

}  // namespace outrider::cuda
