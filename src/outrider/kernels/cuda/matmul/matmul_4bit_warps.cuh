// The chains over weights of 4 bits for up to 16 rows of x, with mma.sync: the bits of wgmma
// (tensor_core_chain_test), but every warp goes on by itself. With so few rows the products take
// little of the tensor cores; what counts is that a warp widens codes without waiting for the
// products before, or for other warps.
#pragma once

#include "outrider/kernels/cuda/matmul/matmul_4bit_chain.cuh"

namespace outrider::cuda {

inline constexpr int kMostRowsByWarp = 16;

/// d [16, 8] += a [16, 16] b [16, 8].
__device__ __forceinline__ void MultiplyByWarp(float* d, const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four matrices of 8 x 8 in shared memory, lane i with the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void LoadRows(uint32_t address, uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

/// As ChainFourBits, for 8 or 16 rows of x.
template <typename Body, int kColumns>
__device__ __forceinline__ void ChainFourBitsByWarp(typename Body::Shared& shared, int group,
                                                    int units, StageCursor<Body>& cursor, int& held,
                                                    float (&sums)[kColumns / 2]) {
  constexpr int kTiles = kColumns / 8;  // of 8 rows of x
  constexpr int kQuarters = kFourBitUnitColumns / kQuarterColumns;
  constexpr bool kInt4 = Body::kFormat == WeightFormat::kInt4;
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  // This lane's row of two slices' four matrices of 8 columns: their pieces of 16 bytes are
  // swizzled by the row. The next two slices' are 64 bytes further on, or back.
  const uint32_t in_stage = lane % 8 * 128 + ((lane / 8) ^ (lane % 8)) * 16;
  const uint32_t first_stage = SharedAddress(shared.x[0]) + in_stage;
  // Adds a slice's products to d [tiles][4].
  const auto multiply = [](int slice, const uint32_t(&a)[4], const uint32_t(&b)[kTiles][4],
                           float* d) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      MultiplyByWarp(d + tile * 4, a, b[tile][2 * slice], b[tile][2 * slice + 1]);
    }
  };
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int unit = 0; unit < units; ++unit) {
    BarrierWait(&shared.full[cursor.stage], cursor.phase);
    const uint8_t* const codes = shared.weights[cursor.stage][group];
    const UnitScales<Body::kFormat> scales(codes);
    const uint32_t x = first_stage + cursor.stage * Body::kXBytes;
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const uint4 four =
          *reinterpret_cast<const uint4*>(codes + quarter * kQuarterBytes + thread * 16);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t rows[kTiles][4];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          LoadRows((x ^ (pair * 64)) + quarter * Body::kTokens * 128 + tile * 1024, rows[tile]);
        }
        if constexpr (kInt4) {
          // A chain of its own for each group of columns, which two slices are.
          float chains[kTiles][4] = {};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t fragment[4];
            WidenInt4(words[pair * 2 + i], fragment);
            multiply(i, fragment, rows, &chains[0][0]);
          }
          const float2 scale = scales.Floats(quarter * 2 + pair);
#pragma unroll
          for (int n = 0; n < kTiles * 4; ++n) {
            sums[n] = __fmaf_rn(n / 2 % 2 == 0 ? scale.x : scale.y, chains[n / 4][n % 4], sums[n]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t upper, lower, fragment[4];
            scales.Factors(quarter * 4 + pair * 2 + i, upper, lower);
            WidenFp4(words[pair * 2 + i], upper, lower, fragment);
            multiply(i, fragment, rows, &sums[0]);
          }
        }
      }
    }
    held = cursor.stage;
    if (unit + 1 < units) cursor.Release(shared, held);
    cursor.Next();
  }
}

}  // namespace outrider::cuda
