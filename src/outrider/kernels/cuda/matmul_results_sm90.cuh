// What becomes of a warpgroup's sums: they are transposed in shared memory; the segments of a
// cluster's blocks are added in order; SiLU, the product with up, the sum with y and the rounding
// follow.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/matmul_loads_sm90.cuh"

namespace outrider::cuda {

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

/// Four results of one row, added over the segments in order. Segment i is at `staged` of the
/// block `first_rank + i * step`.
__device__ __forceinline__ float4 SumOverSegments(const float* staged, int segments, int first_rank,
                                                  int step) {
  if (segments == 1) return *reinterpret_cast<const float4*>(staged);
  const uint32_t address = SharedAddress(staged);
  float4 parts[kMaxSegments];
#pragma unroll
  for (int i = 0; i < kMaxSegments; ++i) {
    if (i < segments) parts[i] = LoadClusterShared(address, first_rank + i * step);
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

/// Puts the rows of y that stand transposed in `staged`, from row `first` of the tile on. Where the
/// segments are in blocks of the cluster, each block does a part.
__device__ __forceinline__ void PutStaged(const MatMulArguments& args, const MatMulTile& tile,
                                          const ClusterPlace& place, int segments,
                                          const float (*staged)[kStagedStride], int unit_row,
                                          int first, int rows) {
  const int first_column = unit_row * (args.gate_up ? kWeightRows / 2 : kWeightRows);
  const int columns = args.gate_up ? args.n / 2 : args.n;
  const int log_per_row = args.gate_up ? 3 : 4;  // of groups of four results
  const int thread = threadIdx.x % 128;
  for (int item = place.segment * 128 + thread; item < rows << log_per_row;
       item += segments * 128) {
    const int token = item >> log_per_row;
    const int four = item & ((1 << log_per_row) - 1);
    const int column = first_column + four * 4;
    if (column >= columns) continue;
    float4 value;
    if (args.gate_up) {
      const float* const at = staged[token] + four / 2 * 16 + four % 2 * 4;
      const float4 gate = SumOverSegments(at, segments, place.share, args.shares);
      const float4 up = SumOverSegments(at + 8, segments, place.share, args.shares);
      value = make_float4(SiluMul(gate.x, up.x), SiluMul(gate.y, up.y), SiluMul(gate.z, up.z),
                          SiluMul(gate.w, up.w));
    } else {
      value = SumOverSegments(staged[token] + four * 4, segments, place.share, args.shares);
    }
    int64_t row = tile.first_row + first + token;
    if (args.pairs != nullptr && !args.gate_up) row = args.pairs[row];
    PutResults(args, row, column, columns, value);
  }
}

/// This thread's sums of kRows rows of y from `first` on, transposed.
template <int kRows, int kCount>
__device__ __forceinline__ void Stage(float (*staged)[kStagedStride], const float (&sums)[kCount],
                                      int first) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    staged[i / 4 * 8 + lane % 4 * 2 + i % 2][warp * 16 + i / 2 % 2 * 8 + lane / 4] =
        sums[first / 2 + i];
  }
}

template <typename Body>
__device__ __forceinline__ void StoreResults(const MatMulArguments& args,
                                             typename Body::Shared& shared, const MatMulTile& tile,
                                             const ClusterPlace& place, int group,
                                             const float (&sums)[Body::kTokens / 2]) {
  const int unit_row = tile.first_unit_row + group;
  if constexpr (!Body::kAllSegments) {
    if (args.cluster_segments > 1) {
      // The block's only tile: all stages have been read once all warps are here.
      auto* const staged =
          reinterpret_cast<float(*)[kStagedStride]>(shared.x[0]) + group * Body::kTokens;
      NamedSync(1 + Body::kWarpgroups, Body::kWarpgroups * 128);
      Stage<Body::kTokens>(staged, sums, 0);
      ClusterArrive();
      ClusterWait();
      PutStaged(args, tile, place, args.cluster_segments, staged, unit_row, 0, tile.num_rows);
      return;
    }
  }
#pragma unroll
  for (int first = 0; first < Body::kTokens; first += Body::kStaged) {
    if (first >= tile.num_rows) break;
    Stage<Body::kStaged>(shared.staged[group], sums, first);
    NamedSync(1 + group, 128);
    PutStaged(args, tile, {}, 1, shared.staged[group], unit_row, first,
              min(Body::kStaged, tile.num_rows - first));
    NamedSync(1 + group, 128);
  }
}

}  // namespace outrider::cuda
