// What becomes of a warpgroup's sums: 32 rows of y at a time go through shared memory, where they
// are transposed; the segments of a cluster's blocks are added in order; SiLU, the product with up,
// the sum with y and the rounding follow.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/matmul_loads_sm90.cuh"

namespace outrider::cuda {

/// All threads of a cluster that have not ended.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// Four floats of the shared memory of block `rank` of the cluster, at this block's `address`.
__device__ __forceinline__ float4 LoadClusterShared(uint32_t address, int rank) {
  float4 value;
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}\n"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

inline constexpr int kMaxSegments = 8;

/// Four results of one row, added over the segments in order.
__device__ __forceinline__ float4 SumOverSegments(const float* staged, int segments) {
  if (segments == 1) return *reinterpret_cast<const float4*>(staged);
  const uint32_t address = SharedAddress(staged);
  float4 parts[kMaxSegments];
#pragma unroll
  for (int i = 0; i < kMaxSegments; ++i) {
    if (i < segments) parts[i] = LoadClusterShared(address, i);
  }
  float4 sum = parts[0];
#pragma unroll
  for (int i = 1; i < kMaxSegments; ++i) {
    if (i < segments) {
      sum.x = __fadd_rn(sum.x, parts[i].x);
      sum.y = __fadd_rn(sum.y, parts[i].y);
      sum.z = __fadd_rn(sum.z, parts[i].z);
      sum.w = __fadd_rn(sum.w, parts[i].w);
    }
  }
  return sum;
}

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0F, __expf(-gate))), up);
}

/// Puts four results at columns column .. column + 3 of y's row, as far as it has them.
__device__ __forceinline__ void PutResults(const MatMulArguments& args, int64_t row, int column,
                                           int columns, float4 value) {
  const int64_t at = row * args.y_stride + column;
  const float values[4] = {value.x, value.y, value.z, value.w};
  if (args.bf16_output) {
    auto* const y = static_cast<__nv_bfloat16*>(args.y) + at;
    if (column + 4 <= columns) {
      *reinterpret_cast<uint2*>(y) =
          make_uint2(PackBf16(value.x, value.y), PackBf16(value.z, value.w));
      return;
    }
    for (int i = 0; i < columns - column; ++i) y[i] = __float2bfloat16_rn(values[i]);
    return;
  }
  float* const y = static_cast<float*>(args.y) + at;
  if (column + 4 <= columns) {
    if (args.accumulate) {
      const float4 old = *reinterpret_cast<const float4*>(y);
      value = make_float4(__fadd_rn(old.x, value.x), __fadd_rn(old.y, value.y),
                          __fadd_rn(old.z, value.z), __fadd_rn(old.w, value.w));
    }
    *reinterpret_cast<float4*>(y) = value;
    return;
  }
  for (int i = 0; i < columns - column; ++i) {
    y[i] = args.accumulate ? __fadd_rn(y[i], values[i]) : values[i];
  }
}

/// `segments`: blocks of the cluster, each of which has a segment's sums; this one is `rank`.
template <typename Body>
__device__ __forceinline__ void StoreResults(const MatMulArguments& args,
                                             typename Body::Shared& shared, const MatMulTile& tile,
                                             int group, int segments, int rank,
                                             const float (&sums)[Body::kTokens / 2]) {
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32, lane = thread % 32;
  const int first_column =
      (tile.first_unit_row + group) * (args.gate_up ? kWeightRows / 2 : kWeightRows);
  const int columns = args.gate_up ? args.n / 2 : args.n;
  float(*const staged)[kStagedStride] = shared.staged[group];
  const auto sync = [&] {
    if (segments > 1) {
      ClusterSync();
    } else {
      NamedSync(1 + group, 128);
    }
  };
#pragma unroll
  for (int first = 0; first < Body::kTokens; first += Body::kStaged) {
    if (first >= tile.num_rows) break;
#pragma unroll
    for (int i = 0; i < Body::kStaged / 2; ++i) {
      staged[i / 4 * 8 + lane % 4 * 2 + i % 2][warp * 16 + i / 2 % 2 * 8 + lane / 4] =
          sums[first / 2 + i];
    }
    sync();
    const int rows = min(Body::kStaged, tile.num_rows - first);
    const int per_row = args.gate_up ? 8 : 16;
    for (int item = rank * 128 + thread; item < rows * per_row; item += segments * 128) {
      const int token = item / per_row, four = item % per_row;
      const int column = first_column + four * 4;
      if (column >= columns) continue;
      float4 value;
      if (args.gate_up) {
        const float* const at = staged[token] + four / 2 * 16 + four % 2 * 4;
        const float4 gate = SumOverSegments(at, segments);
        const float4 up = SumOverSegments(at + 8, segments);
        value = make_float4(SiluMul(gate.x, up.x), SiluMul(gate.y, up.y), SiluMul(gate.z, up.z),
                            SiluMul(gate.w, up.w));
      } else {
        value = SumOverSegments(staged[token] + four * 4, segments);
      }
      int64_t row = tile.first_row + first + token;
      if (args.pairs != nullptr && !args.gate_up) row = args.pairs[row];
      PutResults(args, row, column, columns, value);
    }
    sync();
  }
}

}  // namespace outrider::cuda
