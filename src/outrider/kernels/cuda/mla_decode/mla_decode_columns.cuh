// How the bf16 body of the MLA decode kernel keeps a row's result from split to split: columns in
// float16, small enough to stay in registers beside the accumulator, and a state of two numbers.
// References are integral powers of two, so every weight of a fold is one as well and only the
// columns' rounding to float16 (2^-12 of their size, against 2^-9 of the output's) is added.
#pragma once

#include <cuda_fp16.h>

#include "outrider/kernels/cuda/mla_decode/mla_decode_layout.cuh"

namespace outrider::cuda {

/// 2^exponent for an integral exponent <= 127; 0 below the normal range and for NaN.
__device__ __forceinline__ float PowerOfTwo(float exponent) {
  return __int_as_float((__float2int_rz(fmaxf(exponent, -127.0f)) + 127) << 23);
}

/// What a row's result (of a split, or of several folded ones) has beside its 512 columns. The
/// columns are divided by 2^exponent <= sum, so that they are at most twice as large as the values
/// that went into them.
struct MlaRowState {
  float reference;  // integral, log2 domain; -inf: no visible key
  float sum;
  __device__ __forceinline__ float exponent() const {
    return static_cast<float>((__float_as_int(fmaxf(sum, 1e-30f)) >> 23) - 127);
  }
};

/// Folds the next split into the row's state so far and gives the factors of the columns:
///   columns = columns * keep + next columns * add,  both powers of two <= 1.
/// A split without visible keys changes nothing (keep 1, add 0).
__device__ __forceinline__ MlaRowState FoldRow(const MlaRowState& before, const MlaRowState& next,
                                               float* keep, float* add) {
  MlaRowState after;
  after.reference = fmaxf(before.reference, next.reference);
  const float a = before.reference - after.reference;  // NaN: neither has a key
  const float b = next.reference - after.reference;
  after.sum = __fadd_rn(__fmul_rn(before.sum, PowerOfTwo(a)), __fmul_rn(next.sum, PowerOfTwo(b)));
  *keep = PowerOfTwo(a + before.exponent() - after.exponent());
  *add = PowerOfTwo(b + next.exponent() - after.exponent());
  return after;
}

/// columns * keep + next * add for two columns.
__device__ __forceinline__ __half2 FoldColumns(__half2 columns, __half2 next, __half2 keep,
                                               __half2 add) {
  return __hfma2(columns, keep, __hmul2_rn(next, add));
}

/// The factor that turns a row's columns into its output, and the row's log-sum-exp.
__device__ __forceinline__ float FinishRow(const MlaRowState& row, float value_scale,
                                           const float* sink, int head, float* lse) {
  return FinishRow(row.reference, row.sum, value_scale, sink, head, lse,
                   PowerOfTwo(-row.exponent()));
}

/// Output rounding of two columns.
__device__ __forceinline__ uint32_t OutputPair(__half2 columns, float factor) {
  const float2 wide = __half22float2(columns);
  return OutputPair(wide.x, wide.y, factor);
}

__device__ __forceinline__ uint32_t BitsOf(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ __half2 HalvesOf(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

}  // namespace outrider::cuda
