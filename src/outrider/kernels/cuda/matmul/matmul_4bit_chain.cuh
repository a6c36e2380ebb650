// The chains of wgmma over weights of 4 bits, which are widened to bf16 in registers
// (matmul_4bit_layout.h has the order of codes). A unit of 256 columns goes in steps of a few
// slices: while the tensor cores multiply one, the threads widen the next.
#pragma once

#include "outrider/kernels/cuda/hopper/wgmma_kmajor.cuh"
#include "outrider/kernels/cuda/matmul/matmul_stages.cuh"

namespace outrider::cuda {

/// A word's four pairs of integers as bf16. A code in the low bits of 128's mantissa is 128 + code,
/// and the code has 8 added to it.
__device__ __forceinline__ void WidenInt4(uint32_t word, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    uint32_t shifted;  // (word >> 4 p & mask) | 128s, as one instruction, not two
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
        : "=r"(shifted)
        : "r"(word >> (4 * p)), "n"(0x000F000F), "r"(0x43004300));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(pairs[p])
        : "r"(shifted), "r"(0x3F803F80), "r"(0xC308C308));  // times 1, minus 136
  }
}

/// A word's four pairs of e2m1 codes as bf16, pairs 0 and 2 times `upper`, 1 and 3 times `lower`. A
/// code's bits as those of a bf16 are its value times 2^-kFp4Bits, also where it is subnormal.
__device__ __forceinline__ void WidenFp4(uint32_t word, uint32_t upper, uint32_t lower,
                                         uint32_t (&pairs)[4]) {
  constexpr uint32_t kMask = 0x81C081C0;
  const uint32_t bits[4] = {word & kMask, word << 6 & kMask,
                            __funnelshift_l(word, word, 12) & kMask,
                            (word << 2 & 0x80C080C0) | (word >> 6 & 0x01000100)};
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    asm("mul.rn.bf16x2 %0, %1, %2;"
        : "=r"(pairs[p])
        : "r"(bits[p]), "r"(p % 2 == 0 ? upper : lower));
  }
}

/// What this thread reads of a unit's scales: of its two rows, for all groups of columns.
template <WeightFormat kFormat>
struct UnitScales {
  static constexpr int kBlocks = (FourBitUnitBytes(kFormat) - kFourBitCodeBytes) / kScaleBlockBytes;
  uint32_t words[kBlocks * 4];

  __device__ __forceinline__ explicit UnitScales(const uint8_t* unit) {
    const int thread = threadIdx.x % 128;
    const uint8_t* const own = unit + kFourBitCodeBytes + (thread / 32 * 8 + thread % 32 / 4) * 16;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4 four = *reinterpret_cast<const uint4*>(own + block * kScaleBlockBytes);
      words[block * 4] = four.x;
      words[block * 4 + 1] = four.y;
      words[block * 4 + 2] = four.z;
      words[block * 4 + 3] = four.w;
    }
  }

  /// kInt4: the scales of group `group`.
  __device__ __forceinline__ float2 Floats(int group) const {
    return make_float2(__uint_as_float(words[group] << 16),
                       __uint_as_float(words[group] & 0xFFFF0000));
  }

  /// e2m1: the factors of slice `slice`, as pairs of bf16.
  __device__ __forceinline__ void Factors(int slice, uint32_t& upper, uint32_t& lower) const {
    const int group = kFormat == WeightFormat::kNvfp4 ? slice : slice / 2;
    const uint32_t word = words[group / 2];
    const uint32_t first = group % 2 * 2;
    // The byte, twice: in the low byte of each half.
    const uint32_t a = __byte_perm(word, 0, first | 0x4040 | first << 8);
    const uint32_t b = __byte_perm(word, 0, (first + 1) | 0x4040 | (first + 1) << 8);
    if constexpr (kFormat == WeightFormat::kNvfp4) {
      upper = a * 16 + kNvfp4FactorBits * 0x10001;
      lower = b * 16 + kNvfp4FactorBits * 0x10001;
    } else {
      upper = a << 7;
      lower = b << 7;
    }
  }
};

/// sums = the sum over `units` units, for kColumns rows of x. The last stage is not released.
template <typename Body, int kColumns>
__device__ __forceinline__ void ChainFourBits(typename Body::Shared& shared, int group, int units,
                                              StageCursor<Body>& cursor, int& held,
                                              float (&sums)[kColumns / 2]) {
  constexpr bool kInt4 = Body::kFormat == WeightFormat::kInt4;
  constexpr int kCount = kColumns / 2;
  // Slices of a step. Of integers two are a chain of its own, and a large body has room for one.
  constexpr int kSlices = kInt4 && kCount >= 64 ? 2 : 4;
  constexpr int kSteps = kFourBitUnitColumns / 16 / kSlices;
  constexpr int kChains = kInt4 ? kSlices / 2 : 1;
  // Steps that are under way at a time, where registers last.
  constexpr int kRegisters =
      Body::kGivesRegisters ? Body::kRegisters : 65536 / (Body::kThreads * Body::kBlocksPerSm);
  constexpr int kTotals = Body::kForm == SegmentForm::kAll ? 2 * kCount : kCount;
  constexpr int kTwo = kTotals + 2 * ((kInt4 ? kChains * kCount : 0) + kSlices * 4) + 48;
  constexpr int kBuffers = kTwo <= kRegisters ? 2 : 1;
  const int thread = threadIdx.x % 128;
  uint32_t fragments[kBuffers][kSlices][4];
  float chains[kInt4 ? kBuffers : 1][kChains][kInt4 ? kCount : 1];
  // The first products do not read them. But else the compiler keeps them from the tile before.
#pragma unroll
  for (float& sum : sums) sum = 0;
  if constexpr (kInt4) {
#pragma unroll
    for (auto& buffer : chains) {
#pragma unroll
      for (auto& chain : buffer) {
#pragma unroll
        for (float& value : chain) value = 0;
        PinRegisters(chain);
      }
    }
  } else {
    PinRegisters(sums);
  }
  for (int unit = 0; unit < units; ++unit) {
    BarrierWait(&shared.full[cursor.stage], cursor.phase);
    const uint8_t* const codes = shared.weights[cursor.stage][group];
    const UnitScales<Body::kFormat> scales(codes);
    const StageRows x(shared.x[0], cursor.stage * Body::kXBytes);
    // Adds the chains of a step that has ended.
    const auto add = [&](int step) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        auto& chain = chains[step % kBuffers][c];
        PinRegisters(chain);
        const float2 scale = scales.Floats(step * kChains + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sums[i] = __fmaf_rn(i / 2 % 2 == 0 ? scale.x : scale.y, chain[i], sums[i]);
        }
      }
    };
    // Codes of a step are read while those of the step before are widened.
    uint32_t words[2][kSlices];
    const auto read = [&](int step) {
      const uint8_t* const at =
          codes + step * kSlices / 4 * kQuarterBytes + thread * 16 + step * kSlices % 4 * 4;
      auto& into = words[step % 2];
      if constexpr (kSlices == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(at);
        into[0] = four.x;
        into[1] = four.y;
        into[2] = four.z;
        into[3] = four.w;
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        into[0] = two.x;
        into[1] = two.y;
      }
    };
    read(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      auto& own = fragments[step % kBuffers];
      if (step + 1 < kSteps) read(step + 1);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        if constexpr (kInt4) {
          WidenInt4(words[step % 2][i], own[i]);
        } else {
          uint32_t upper, lower;
          scales.Factors(step * kSlices + i, upper, lower);
          WidenFp4(words[step % 2][i], upper, lower, own[i]);
        }
      }
      // All of them before the fence: none may be made while these products run.
#pragma unroll
      for (int i = 0; i < kSlices * 4; ++i) asm volatile("" : "+r"(own[i / 4][i % 4])::"memory");
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const int slice = step * kSlices + i;
        const uint64_t columns = x.At(slice / 4 * Body::kTokens * 128 + slice % 4 * 32);
        if constexpr (kInt4) {
          WgmmaKMajor<kColumns>::MultiplyRegisters(chains[step % kBuffers][i / 2], own[i], columns,
                                                   i % 2);
        } else {
          WgmmaKMajor<kColumns>::MultiplyRegisters(sums, own[i], columns, unit + slice > 0 ? 1 : 0);
        }
      }
      WgmmaCommit();
      if constexpr (kBuffers == 1) {
        WgmmaWait<0>();
        if constexpr (kInt4) add(step);
      } else if (step > 0) {
        WgmmaWait<1>();
        if constexpr (kInt4) add(step - 1);
      }
    }
    if constexpr (kBuffers == 2) {
      // Products of the next unit could run on from here, but the compiler serialises them then.
      WgmmaWait<0>();
      if constexpr (kInt4) add(kSteps - 1);
    }
    held = cursor.stage;
    if (unit + 1 < units) cursor.Release(shared, held);
    if constexpr (!kInt4) PinRegisters(sums);
    cursor.Next();
  }
}

}  // namespace outrider::cuda
