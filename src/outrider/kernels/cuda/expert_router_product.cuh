// The product before the router, for few rows, by the blocks of a cluster: each has a segment of K
// for all experts, its weights in registers before the kernel before this one has ended. The first
// block adds up the segments in order. Sums are the chains of the matrix products (matmul.h), by
// mma.sync, which gives the same bits as wgmma (tensor_core_chain_test).
#pragma once

#include "outrider/kernels/cuda/expert_router.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {

inline constexpr int kProductRows = 16;  // at most
inline constexpr int kProductExperts = 128;
inline constexpr int kProductColumns = 256;  // of a segment
inline constexpr int kProductSlices = kProductColumns / 16;

struct RouterProductArguments {
  const uint8_t* x;
  int64_t x_row_bytes;
  const uint8_t* weight;
  int k;
  int units;            // of a row of units
  int segment_columns;  // a multiple of 128, kProductColumns at most
};

/// Floats between rows of logits in shared memory.
__host__ __device__ constexpr int LogitsStride(int experts) { return (experts + 15) / 16 * 16; }

/// A warp's part: 16 experts by 8 rows of x, over the block's segment.
class RouterProductWarp {
 public:
  /// Asks for the weights. Of every slice of 16 columns a lane has four that follow each other, of
  /// two experts: which of a slice's columns are multiplied together makes no difference.
  __device__ __forceinline__ RouterProductWarp(const RouterProductArguments& args, int segment,
                                               int expert0, int row0)
      : row0_(row0),
        column0_(segment * args.segment_columns),
        slices_(min(args.segment_columns, args.units * kWeightColumns - column0_) / 16) {
    const int lane = threadIdx.x % 32;
    const int row = expert0 % kWeightRows + lane / 4;
    const uint8_t* const unit_row =
        args.weight + static_cast<int64_t>(expert0 / kWeightRows) * args.units * kBf16UnitBytes;
#pragma unroll
    for (int slice = 0; slice < kProductSlices; ++slice) {
      const int column = column0_ + slice * 16 + lane % 4 * 4;
      const int half = column / 64, within = column % 64;
      const uint8_t* const at = unit_row + half * (kWeightRows * 128) + row * 128 +
                                ((within / 8 ^ row % 8) << 4) + within % 8 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // eight experts further on the same places of their rows
        weights_[slice][i] = slice < slices_
                                 ? __ldg(reinterpret_cast<const uint2*>(at + i * 8 * 128))
                                 : make_uint2(0, 0);
      }
    }
  }

  /// sums = lane's results: of experts lane / 4 and 8 further on, of two neighbouring rows each.
  __device__ __forceinline__ void Multiply(const RouterProductArguments& args, int rows,
                                           float (&sums)[4]) const {
    const int lane = threadIdx.x % 32;
    const int row = max(0, min(row0_ + lane / 4, rows - 1));  // past the end: not used
    const uint8_t* const x = args.x + row * args.x_row_bytes;
    uint2 values[kProductSlices];
#pragma unroll
    for (int slice = 0; slice < kProductSlices; ++slice) {
      const int column = column0_ + slice * 16 + lane % 4 * 4;
      // Rows have room for whole groups of 8 columns, but what is past the end is not zero.
      values[slice] = make_uint2(0, 0);
      if (column < args.k) values[slice] = __ldcg(reinterpret_cast<const uint2*>(x + column * 2));
      if (column + 4 > args.k) values[slice] = CutOff(values[slice], args.k - column);
    }
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int slice = 0; slice < kProductSlices; ++slice) {
      if (slice >= slices_) break;
      const uint2 a = weights_[slice][0], b = weights_[slice][1], c = values[slice];
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
          "%7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(c.x), "r"(c.y));
    }
  }

 private:
  /// The first `left` of four bf16, then zeros.
  static __device__ __forceinline__ uint2 CutOff(uint2 four, int left) {
    const auto mask = [](int halves) {
      return halves <= 0 ? 0u : halves == 1 ? 0xFFFFu : 0xFFFFFFFFu;
    };
    return make_uint2(four.x & mask(left), four.y & mask(left - 2));
  }

  int row0_;
  int column0_;
  int slices_;
  uint2 weights_[kProductSlices][2];
};

}  // namespace outrider::cuda
