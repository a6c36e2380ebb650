// The weights of a row's mixture, by a warp, with the float steps of the CPU
// (ops/cpu/hyper_ops.cc).
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/hyper/hyper_rows.h"

namespace outrider::cuda {

__device__ __forceinline__ float HyperSigmoid(float x) {
  return RoundedDiv(1.0F, RoundedAdd(1.0F, RoundedExp(-x)));
}

/// A lane's element (lane / 4, lane % 4) of a 4 x 4 matrix over the sum of its row plus `start`, or
/// of its column. Lanes from 16 on repeat the first.
__device__ __forceinline__ float OverSum(float value, bool columns, float start) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  float sum = start;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int source = columns ? i * 4 + lane % 4 : lane / 4 * 4 + i;
    sum = RoundedAdd(sum, __shfl_sync(~0u, value, source));
  }
  return RoundedDiv(value, sum);
}

/// Sinkhorn's normalisation of exp(x), a lane per element. Lanes from 16 on repeat the first.
__device__ __forceinline__ float Sinkhorn(float x, int iterations, float epsilon) {
  float max = x;
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, mask));
  float c = OverSum(RoundedExp(RoundedSub(x, max)), /*columns=*/false, 0.0F);
  c = OverSum(RoundedAdd(c, epsilon), /*columns=*/true, epsilon);
#pragma unroll 1
  for (int i = 1; i < iterations; ++i) {
    c = OverSum(c, /*columns=*/false, epsilon);
    c = OverSum(c, /*columns=*/true, epsilon);
  }
  return c;
}

/// What a row's weight number `lane` is made of: its sum, in this lane, and the inverse of the
/// row's norm.
__device__ __forceinline__ float MixInput(float sum, float inverse, float scale, float base) {
  return RoundedAdd(RoundedMul(RoundedMul(sum, inverse), scale), base);
}

/// pre [4] of MixInput.
__device__ __forceinline__ void MixPre(const HyperRowsParams& params, float input, float* pre) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 4) pre[lane] = RoundedAdd(HyperSigmoid(input), params.epsilon);
}

/// post [4], comb [4, 4] of MixInput, by which an output is added. All lanes of a warp. Sinkhorn's
/// normalisation takes longer than all else that a row's warp does by itself.
__device__ __forceinline__ void MixAdded(const HyperRowsParams& params, float input,
                                         float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= 4 && lane < 8) weights[lane - 4] = RoundedMul(2.0F, HyperSigmoid(input));
  const float of_comb = __shfl_sync(~0u, input, 8 + lane % 16);
  const float comb = Sinkhorn(of_comb, params.iterations, params.epsilon);
  if (lane < 16) weights[kHyperStreams + lane] = comb;
}

}  // namespace outrider::cuda
