// The sums of a warpgroup: 64 rows of a weight, on wgmma's M, by the body's rows of x, on its N.
// A chain starts from zero and goes over slices of 16 columns in order:
//   bf16, e2m1, e4m3 with a scale per row or scales that are powers of two: a segment. Scales of
//   groups and powers of two are multiplied into the weight exactly;
//   e4m3 else: a unit of 128 columns, integers of 4 bits: a group of 32; chains are then multiplied
//   by their scale and added up by FMA in order, from zero, to the sum of a segment.
// The sum of a segment is multiplied by the row's scale, where rows have one.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/hopper/wgmma_kmajor.cuh"
#include "outrider/kernels/cuda/matmul/matmul_4bit_chain.cuh"
#include "outrider/kernels/cuda/matmul/matmul_4bit_warps.cuh"
#include "outrider/kernels/cuda/matmul/matmul_loads.cuh"
#include "outrider/kernels/cuda/matmul/matmul_stages.cuh"

namespace outrider::cuda {

/// A word's two pairs of e4m3 codes (F8Half) as bf16, multiplied. A code's bits as those of a bf16
/// are its value times 2^-120, also where it is subnormal; the factors undo that.
__device__ __forceinline__ void WidenCodes(uint32_t word, uint32_t high_factor, uint32_t low_factor,
                                           uint32_t& high, uint32_t& low) {
  const uint32_t a = word & 0x87F087F0;
  const uint32_t b = (word << 4 & 0x80F080F0) | (word >> 4 & 0x07000700);
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(high) : "r"(a), "r"(high_factor));
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(low) : "r"(b), "r"(low_factor));
}

/// The first kCount of `values`.
template <int kCount, int kAll>
__device__ __forceinline__ float (&First(float (&values)[kAll]))[kCount] {
  static_assert(kCount <= kAll);
  return reinterpret_cast<float(&)[kCount]>(values);
}

/// sums = the chain over `steps` stages, bf16 weights in shared memory, for kColumns rows of x. The
/// last stage is not released: `held` says which it is.
template <typename Body, int kColumns>
__device__ __forceinline__ void ChainBf16(typename Body::Shared& shared, int group, int steps,
                                          StageCursor<Body>& cursor, int& held,
                                          float (&sums)[kColumns / 2]) {
  // Two products where one would need more registers than threads have when the kernel starts.
  constexpr int kMost = Body::kWarpgroups > 2 ? 128 : 256;
  constexpr int kFirst = kColumns < kMost ? kColumns : kMost;
  constexpr int kRest = kColumns > kFirst ? kColumns - kFirst : kFirst;
  const uint64_t weights = MakeDescriptor(SharedAddress(shared.weights[0][group]), 16, 1024);
  const uint64_t x = MakeDescriptor(SharedAddress(shared.x[0]), 16, 1024);
  // The first product does not read them. But else the compiler keeps them from the tile before.
#pragma unroll
  for (float& sum : sums) sum = 0;
  PinRegisters(sums);
  for (int step = 0; step < steps; ++step) {
    BarrierWait(&shared.full[cursor.stage], cursor.phase);
    const uint64_t a = weights + cursor.stage * (sizeof(shared.weights[0]) >> 4);
    const uint64_t b = x + cursor.stage * (Body::kXBytes >> 4);
    WgmmaFence();
#pragma unroll
    for (int slice = 0; slice < Body::kStageColumns / 16; ++slice) {
      const int half = slice / 4;
      const uint64_t slice_a = Advance(a, half * kWeightRows * 128 + slice % 4 * 32);
      const uint64_t slice_b = Advance(b, half * Body::kTokens * 128 + slice % 4 * 32);
      const int more = step > 0 || slice > 0 ? 1 : 0;
      WgmmaKMajor<kFirst>::Multiply(First<kFirst / 2>(sums), slice_a, slice_b, more);
      if constexpr (kColumns > kFirst) {
        auto& rest = reinterpret_cast<float(&)[kRest / 2]>(sums[kFirst / 2]);
        WgmmaKMajor<kRest>::Multiply(rest, slice_a, Advance(slice_b, kFirst * 128), more);
      }
    }
    WgmmaCommit();
    if (step > 0) {
      WgmmaWait<1>();
      cursor.Release(shared, held);
    }
    held = cursor.stage;
    cursor.Next();
  }
  WgmmaWait<0>();
  PinRegisters(sums);
}

/// sums = the sum over `units` units of e4m3 weights, which are widened in registers. The last
/// stage is not released.
template <typename Body>
__device__ __forceinline__ void ChainF8(typename Body::Shared& shared, int group, int units,
                                        StageCursor<Body>& cursor, int& held,
                                        float (&sums)[Body::kTokens / 2]) {
  constexpr bool kScaled = Body::kFormat == WeightFormat::kF8;
  constexpr int kCount = Body::kTokens / 2;
  const int thread = threadIdx.x % 128;
  float chain[kScaled ? kCount : 1];
  // For each half of a unit: slices, registers of A. Where registers are short the halves share
  // them.
  constexpr int kRegisters =
      Body::kGivesRegisters ? Body::kRegisters : 65536 / (Body::kThreads * Body::kBlocksPerSm);
  constexpr int kSums = (kScaled ? 2 : 1) * (Body::kForm == SegmentForm::kAll ? 2 : 1) * kCount;
  constexpr int kBuffers = kSums + 32 + 48 <= kRegisters ? 2 : 1;
  uint32_t fragments[kBuffers][4][4];
  // The first products do not read them. But else the compiler keeps them from the tile before.
#pragma unroll
  for (float& sum : sums) sum = 0;
#pragma unroll
  for (float& value : chain) value = 0;
  if constexpr (kScaled) {
    PinRegisters(chain);
  } else {
    PinRegisters(sums);
  }
  for (int unit = 0; unit < units; ++unit) {
    BarrierWait(&shared.full[cursor.stage], cursor.phase);
    const uint8_t* const weights = shared.weights[cursor.stage][group];
    float2 scales = {};
    if constexpr (HasBlockScales(Body::kFormat)) {
      scales =
          *reinterpret_cast<const float2*>(&shared.scales[cursor.stage][group][thread / 32 * 2]);
    }
    uint32_t factors[2] = {0x7B807B80, 0x7B807B80};  // 2^120
    if constexpr (Body::kFormat == WeightFormat::kF8PowerOfTwo) {
      factors[0] = PackBf16(scales.x * 0x1p120F, scales.x * 0x1p120F);
      factors[1] = PackBf16(scales.y * 0x1p120F, scales.y * 0x1p120F);
    }
    const StageRows x(shared.x[0], cursor.stage * Body::kXBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int buffer = half % kBuffers;
      if (kBuffers == 1 && half == 1) WgmmaWait<0>();
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint4 codes =
            *reinterpret_cast<const uint4*>(weights + (half * 2 + pair) * 2048 + thread * 16);
        uint32_t(&even)[4] = fragments[buffer][pair * 2];
        uint32_t(&odd)[4] = fragments[buffer][pair * 2 + 1];
        WidenCodes(codes.x, factors[0], factors[1], even[0], even[1]);
        WidenCodes(codes.y, factors[0], factors[1], even[2], even[3]);
        WidenCodes(codes.z, factors[0], factors[1], odd[0], odd[1]);
        WidenCodes(codes.w, factors[0], factors[1], odd[2], odd[3]);
      }
      // All of them before the fence: none may be made while these products run.
#pragma unroll
      for (int i = 0; i < 16; ++i)
        asm volatile("" : "+r"(fragments[buffer][i / 4][i % 4])::"memory");
      WgmmaFence();
#pragma unroll
      for (int slice = 0; slice < 4; ++slice) {
        const uint64_t at = x.At(half * Body::kTokens * 128 + slice * 32);
        if constexpr (kScaled) {
          WgmmaKMajor<Body::kTokens>::MultiplyRegisters(chain, fragments[buffer][slice], at,
                                                        half + slice > 0 ? 1 : 0);
        } else {
          WgmmaKMajor<Body::kTokens>::MultiplyRegisters(sums, fragments[buffer][slice], at,
                                                        unit + half + slice > 0 ? 1 : 0);
        }
      }
      WgmmaCommit();
    }
    // Products of the next unit could run on from here, but the compiler serialises them then.
    WgmmaWait<0>();
    held = cursor.stage;
    if (unit + 1 < units) cursor.Release(shared, held);
    if constexpr (kScaled) {
      PinRegisters(chain);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums[i] = __fmaf_rn(i / 2 % 2 == 0 ? scales.x : scales.y, chain[i], sums[i]);
      }
    } else {
      PinRegisters(sums);
    }
    cursor.Next();
  }
}

/// Scales of this thread's two rows of the weight, where rows have one.
template <typename Body>
__device__ __forceinline__ float2 RowScalesOf(const MatMulArguments& args, const MatMulTile& tile,
                                              int group) {
  if constexpr (HasRowScales(Body::kFormat)) {
    const int unit_row = tile.first_unit_row + group;
    if (unit_row * kWeightRows < args.n) {  // else the results are nobody's
      const int thread = threadIdx.x % 128;
      const auto* const scales =
          reinterpret_cast<const float*>(args.scales + tile.expert * args.expert_bytes) +
          unit_row * kWeightRows + thread / 32 * 16 + thread % 32 / 4;
      return make_float2(__ldg(scales), __ldg(scales + 8));
    }
  }
  return make_float2(1, 1);
}

/// The sum of one segment, for kColumns rows of x. The last stage is not released.
template <typename Body, int kColumns>
__device__ __forceinline__ void SumSegment(typename Body::Shared& shared, int group, int units,
                                           float2 row_scales, StageCursor<Body>& cursor, int& held,
                                           float (&sums)[kColumns / 2]) {
  if constexpr (Body::kFormat == WeightFormat::kBf16) {
    ChainBf16<Body, kColumns>(shared, group, units * (Body::kUnitColumns / Body::kStageColumns),
                              cursor, held, sums);
  } else if constexpr (IsFourBits(Body::kFormat) && kColumns <= kMostRowsByWarp) {
    ChainFourBitsByWarp<Body, kColumns>(shared, group, units, cursor, held, sums);
  } else if constexpr (IsFourBits(Body::kFormat)) {
    ChainFourBits<Body, kColumns>(shared, group, units, cursor, held, sums);
  } else {
    ChainF8<Body>(shared, group, units, cursor, held, sums);
  }
  if constexpr (HasRowScales(Body::kFormat)) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      sums[i] = __fmul_rn(sums[i], i / 2 % 2 == 0 ? row_scales.x : row_scales.y);
    }
  }
}

/// total = the sum over all segments of K, for kColumns rows of x. `sums` is room for one of them.
template <typename Body, int kColumns>
__device__ __forceinline__ void SumAllSegments(const MatMulArguments& args,
                                               typename Body::Shared& shared, int group,
                                               float2 row_scales, StageCursor<Body>& cursor,
                                               int& held, float (&sums)[kColumns / 2],
                                               float (&total)[kColumns / 2]) {
#pragma unroll
  for (float& value : total) value = -0.0F;  // which changes nothing that it is added to
  for (int first = 0; first < args.units; first += args.segment_units) {
    SumSegment<Body, kColumns>(shared, group, min(args.segment_units, args.units - first),
                               row_scales, cursor, held, sums);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
    if (first + args.segment_units < args.units) cursor.Release(shared, held);
  }
}

/// The sums of a tile over a block's part of K.
template <typename Body>
__device__ __forceinline__ void SumTile(const MatMulArguments& args, typename Body::Shared& shared,
                                        int group, int units, const MatMulTile& tile,
                                        StageCursor<Body>& cursor, int& held,
                                        float (&sums)[Body::kTokens / 2]) {
  const float2 scales = RowScalesOf<Body>(args, tile, group);
  if constexpr (Body::kForm == SegmentForm::kAll) {
    float segment[Body::kTokens / 2];
    SumAllSegments<Body, Body::kTokens>(args, shared, group, scales, cursor, held, segment, sums);
  } else if constexpr (Body::kSmallBoxes) {
    // Products as wide as the boxes that there are; three go as four.
    constexpr int kTwo = 2 * kSmallBoxRows;
    if (tile.num_rows <= kSmallBoxRows) {
      SumSegment<Body, kSmallBoxRows>(shared, group, units, scales, cursor, held,
                                      First<kSmallBoxRows / 2>(sums));
    } else if (Body::kTokens == kTwo || tile.num_rows > kTwo) {
      SumSegment<Body, Body::kTokens>(shared, group, units, scales, cursor, held, sums);
    } else {
      SumSegment<Body, kTwo>(shared, group, units, scales, cursor, held, First<kTwo / 2>(sums));
    }
  } else if constexpr (!Body::kWide) {
    SumSegment<Body, Body::kTokens>(shared, group, units, scales, cursor, held, sums);
  } else {
    // Products as wide as the boxes of 64 rows that there are.
    switch ((tile.num_rows + kBoxRows - 1) / kBoxRows) {
      case 1:
        SumSegment<Body, kBoxRows>(shared, group, units, scales, cursor, held,
                                   First<kBoxRows / 2>(sums));
        break;
      case 2:
        SumSegment<Body, 2 * kBoxRows>(shared, group, units, scales, cursor, held,
                                       First<kBoxRows>(sums));
        break;
      case 3:
        SumSegment<Body, 3 * kBoxRows>(shared, group, units, scales, cursor, held,
                                       First<kBoxRows / 2 * 3>(sums));
        break;
      default:
        SumSegment<Body, 4 * kBoxRows>(shared, group, units, scales, cursor, held, sums);
    }
  }
}

}  // namespace outrider::cuda
