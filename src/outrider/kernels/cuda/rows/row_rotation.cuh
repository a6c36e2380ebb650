// The two halves of the rotation of a pair (a, b) by an angle, in a fixed order of rounding.
#pragma once

namespace outrider::cuda {

/// a cos - b sin.
__device__ __forceinline__ float RotateFirst(float a, float b, float cos, float sin) {
  return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
}
/// a sin + b cos.
__device__ __forceinline__ float RotateSecond(float a, float b, float cos, float sin) {
  return __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
}

}  // namespace outrider::cuda
