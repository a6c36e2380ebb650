// A warp multiplies 16 tokens of one head by some columns with mma.sync m16n8k16. Both operands
// come straight from global memory, 16 bytes per load: a lane's eight values of 32 k are the two
// pairs that it must hold in each of two products; since x and w are split alike, sums are over the
// right pairs. The warps of a block take different tokens, so a block reads its weights once.
#include <cuda_bf16.h>

#include "outrider/kernels/cuda/head_projection.h"

namespace outrider::cuda {
namespace {

constexpr int kTileTokens = 16;

__device__ __forceinline__ void Multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// kBlocks: groups of 8 columns per warp. kWarps: token tiles per block.
template <int kBlocks, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) ProjectKernel(HeadProjectionParams params) {
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int column0 = blockIdx.x * kBlocks * 8;
  const int token0 = (blockIdx.z * kWarps + threadIdx.x / 32) * kTileTokens;
  if (token0 >= params.num_tokens) return;
  const int last = params.num_tokens - 1;
  const auto* x = static_cast<const __nv_bfloat16*>(params.x) + head * params.x_head_stride;
  // Rows past the end read the last one and write nothing.
  const __nv_bfloat16* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    rows[i] = x + min(token0 + lane / 4 + 8 * i, last) * params.x_token_stride + lane % 4 * 8;
  }
  const auto* w = static_cast<const __nv_bfloat16*>(params.w) +
                  (static_cast<int64_t>(head) * params.n + column0 + lane / 4) * params.k +
                  lane % 4 * 8;
  float sums[kBlocks][4] = {};
#pragma unroll 4
  for (int k = 0; k < params.k; k += 32) {
    const uint4 a = __ldg(reinterpret_cast<const uint4*>(rows[0] + k));
    const uint4 b = __ldg(reinterpret_cast<const uint4*>(rows[1] + k));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4 c = __ldg(reinterpret_cast<const uint4*>(w + block * 8 * params.k + k));
      Multiply(sums[block], a.x, b.x, a.y, b.y, c.x, c.y);
      Multiply(sums[block], a.z, b.z, a.w, b.w, c.z, c.w);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = token0 + lane / 4 + 8 * i;
    if (token > last) continue;
    auto* y = static_cast<__nv_bfloat16*>(params.y) + token * params.y_token_stride +
              head * params.y_head_stride + column0 + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      *reinterpret_cast<uint32_t*>(y + block * 8) =
          Pack(sums[block][2 * i], sums[block][2 * i + 1]);
    }
  }
}

template <int kBlocks, int kWarps>
void Launch(const HeadProjectionParams& params, cudaStream_t stream) {
  const int per_block = kTileTokens * kWarps;
  const dim3 grid(params.n / (8 * kBlocks), params.heads,
                  (params.num_tokens + per_block - 1) / per_block);
  ProjectKernel<kBlocks, kWarps><<<grid, 32 * kWarps, 0, stream>>>(params);
}

}  // namespace

cudaError_t ProjectHeads(const HeadProjectionParams& params, cudaStream_t stream) {
  const bool strides_ok = params.x_token_stride % 8 == 0 && params.x_head_stride % 8 == 0 &&
                          params.y_token_stride % 2 == 0 && params.y_head_stride % 2 == 0;
  if (params.num_tokens < 0 || params.heads <= 0 || params.k <= 0 || params.k % 32 != 0 ||
      params.n <= 0 || params.n % 32 != 0 || !strides_ok) {
    return cudaErrorInvalidValue;
  }
  if (params.num_tokens == 0) return cudaSuccess;
  // Few tokens: many small blocks, to have enough loads of weights on their way. Tiles over tokens
  // and columns change no sum.
  if (params.num_tokens <= kTileTokens) {
    Launch<1, 1>(params, stream);
  } else if (params.num_tokens <= 4 * kTileTokens) {
    Launch<2, 4>(params, stream);
  } else {
    Launch<4, 8>(params, stream);
  }
  return cudaGetLastError();
}

}  // namespace outrider::cuda
