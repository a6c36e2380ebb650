// Weights stay in registers: a warp holds 16 columns of one head's matrix over all of k, or over a
// quarter where k is above 256, and multiplies them by 16 tokens at a time with mma.sync m16n8k16,
// as many tokens as its block is given. All of a warp's weights are asked for at once, before the
// kernel before this one has finished, since nothing in a step changes them: with few tokens the
// time is one trip to memory. Many tokens: head_projection_many.cuh.
//
// Both operands come straight from global memory, 16 bytes per load: a lane's eight values of 32 k
// are the two pairs that it must hold in each of two products; since x and w are split alike, sums
// are over the right pairs. The columns are dealt to the products so that a lane's results are
// neighbours.
#include <algorithm>

#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/mla_decode/head_projection_many.cuh"

namespace outrider::cuda {
namespace {

constexpr int kFewWarps = 4;    // of a block
constexpr int kManyWarps = 16;  // of a block with few tokens and a chain per column
constexpr int kManyTokens = 64;

struct Launch {
  int column_blocks;     // then, with a rotary part, one more for it
  int tokens_per_block;  // a multiple of kTileTokens
};

/// kChunks: pieces of 32 k that a warp has. kParts: warps that share the columns, each with a part
/// of k of its own; 1 or kWarps. kWarps: of a block.
template <int kChunks, int kParts, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    ProjectKernel(const HeadProjectionParams params, const RotaryTable rotary,
                  const Launch launch) {
  constexpr int kBlocks = 2;  // products of 8 columns
  constexpr int kWarpColumns = 8 * kBlocks;
  constexpr int kResults = 2;  // of four values, of a lane: token by token
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
  uint4 w[kBlocks][kChunks];
  if (has_columns) LoadHeadWeights(params, head, column0, k0, w);
  WaitForPriorGrid();
  const int tokens =
      params.true_rows != nullptr ? min(params.num_tokens, *params.true_rows) : params.num_tokens;
  const int begin = static_cast<int>(blockIdx.z) * launch.tokens_per_block;
  const int end = min(begin + launch.tokens_per_block, tokens);
  if (rotates) {
    RotateTokens<kWarps, 8>(params, rotary, head, begin, end);
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
  constexpr bool kAhead = kWarps == kFewWarps && kChunks * (kBlocks + 4) <= 48;
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
    // Result r: four columns, of token lane / 4 + 8 r.
    auto store = [&](int r, float4 v) {
      const int token = token0 + lane / 4 + 8 * r;
      if (token >= end) return;
      *reinterpret_cast<uint2*>(y + token * params.y_token_stride) =
          make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
    };
    float4 result[kResults];
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
      const int i = 2 * r;
      result[r] = make_float4(sums[0][i], sums[0][i + 1], sums[1][i], sums[1][i + 1]);
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

template <int kChunks, int kParts, int kWarps = kFewWarps>
cudaError_t RunFew(const HeadProjectionParams& params, cudaStream_t stream) {
  constexpr int kBlockColumns = kWarps / kParts * 16;
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
  return LaunchDependent(ProjectKernel<kChunks, kParts, kWarps>,
                         dim3(blocks_x, params.heads, blocks_z), dim3(32 * kWarps), 0, stream,
                         params, params.rotary != nullptr ? *params.rotary : RotaryTable{}, launch);
}

template <int kChunks, int kParts>
cudaError_t RunMany(const HeadProjectionParams& params, cudaStream_t stream) {
  using Shape = ManyShape<kChunks, kParts>;
  static OncePerDevice once;
  const cudaError_t allowed = once.Call([&] {
    return cudaFuncSetAttribute(ProjectManyKernel<kChunks, kParts>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  });
  if (allowed != cudaSuccess) return allowed;
  constexpr int kMultiprocessors = 132;
  const int column_blocks = (params.n + Shape::kBlockColumns - 1) / Shape::kBlockColumns;
  const int tiles = (params.num_tokens + kTileTokens - 1) / kTileTokens;
  const int parts = std::clamp(kMultiprocessors / (column_blocks * params.heads), 1, tiles);
  const int tiles_per_block = (tiles + parts - 1) / parts;
  const dim3 blocks(column_blocks, params.heads, (tiles + tiles_per_block - 1) / tiles_per_block);
  return LaunchDependent(ProjectManyKernel<kChunks, kParts>, blocks, dim3(Shape::kThreads),
                         Shape::kSharedBytes, stream, params,
                         params.rotary != nullptr ? *params.rotary : RotaryTable{},
                         tiles_per_block * kTileTokens);
}

template <int kChunks, int kParts>
cudaError_t Run(const HeadProjectionParams& params, cudaStream_t stream) {
  if (params.num_tokens >= kManyTokens) return RunMany<kChunks, kParts>(params, stream);
  // With few tokens large blocks leave multiprocessors to the attention behind them, which needs
  // all of one and copies keys meanwhile.
  if constexpr (kParts == 1) {
    if (kChunks <= 6 && params.num_tokens <= kTileTokens) {
      return RunFew<kChunks, kParts, kManyWarps>(params, stream);
    }
  }
  return RunFew<kChunks, kParts>(params, stream);
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
  return params.k <= 256 ? RunParts<1>(params, stream) : RunParts<kFewWarps>(params, stream);
}

}  // namespace outrider::cuda
