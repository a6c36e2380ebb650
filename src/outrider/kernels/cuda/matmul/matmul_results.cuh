// What becomes of a warpgroup's sums. Where its block has all of K they are transposed through the
// warpgroup's part of the last stage, 8 KB at a time, and go to y in pieces of 16 bytes. Where the
// blocks of a cluster have a segment each, all put their sums where the stages were, and each adds
// up a part of the results, segments in order. Every body has this code once for each kind of
// result. Edge cases stand apart: an epilogue runs once per tile and is limited by instruction
// fetch. Longer than most files: one case for each kind of result.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/matmul/matmul_destinations.cuh"
#include "outrider/kernels/cuda/matmul/matmul_loads.cuh"

namespace outrider::cuda {

/// The smaller one; NaN if either is.
__device__ __forceinline__ float MinOrNan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ __forceinline__ float MaxOrNan(float a, float b) { return -MinOrNan(-a, -b); }

/// silu(gate) * up, cut at limits. The division is that of the special function unit, within two
/// units of the last place; it has no slow path, whose calls would take registers from the sums.
__device__ __forceinline__ float SiluMul(const GateUpLimits& limits, float gate, float up) {
  gate = MinOrNan(gate, limits.gate);
  const float silu = MinOrNan(__fdividef(gate, __fadd_rn(1.0F, __expf(-gate))), limits.silu);
  return __fmul_rn(silu, MaxOrNan(MinOrNan(up, limits.up), -limits.up));
}
__device__ __forceinline__ float4 SiluMul(const GateUpLimits& limits, float4 gate, float4 up) {
  return make_float4(SiluMul(limits, gate.x, up.x), SiluMul(limits, gate.y, up.y),
                     SiluMul(limits, gate.z, up.z), SiluMul(limits, gate.w, up.w));
}
/// Those of a tile's expert.
__device__ __forceinline__ const GateUpLimits& LimitsOf(const MatMulArguments& args,
                                                        const MatMulTile& tile) {
  return args.limits[tile.expert >= args.first_shared ? 1 : 0];
}
__device__ __forceinline__ float4 AddFour(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

/// Adds floats that are given by their bits.
__device__ __forceinline__ uint4 AddFour(uint4 a, uint4 b) {
  const auto add = [](uint32_t x, uint32_t y) {
    return __float_as_uint(__fadd_rn(__uint_as_float(x), __uint_as_float(y)));
  };
  return make_uint4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
}

/// Rows of y in shared memory, of kColumns columns each: floats or bf16, in pieces of 16 bytes that
/// change places within a row so that a warp's accesses meet no bank twice.
template <bool kFloats_, int kColumns_>
struct ResultArea {
  static constexpr bool kFloats = kFloats_;
  static constexpr int kColumns = kColumns_;  // 64, or 32 of gate and up
  static constexpr int kRowBytes = kColumns * (kFloats ? 4 : 2);
  static constexpr int kRows = kResultBytes / kRowBytes;  // that have room
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kRowsPerPass = 128 / kPieces;  // of 128 threads with a piece each

  static __device__ __forceinline__ uint32_t Offset(int row, int piece) {
    const int turn = kRowBytes == 64 ? row / 2 % 4 : row % 8;
    return row * kRowBytes + ((piece ^ turn) << 4);
  }
};

__device__ __forceinline__ void StoreShared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ uint4 LoadShared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

/// Puts kRows rows of this thread's sums, from row `first` of the tile on, into `area`, transposed;
/// rows past num_rows are left out by 64. Of gate and up, SiLU and the product. (Not in place of
/// the sums: products of the next tile would wait for each other.)
template <typename Area, int kRows, int kCount>
__device__ __forceinline__ void PutSums(uint32_t area, const float (&sums)[kCount], int first,
                                        int num_rows, const GateUpLimits& limits) {
  constexpr bool kGateUp = Area::kColumns == 32;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if constexpr (Area::kFloats) {
    constexpr int kHalves = kGateUp ? 1 : 2;  // of eight columns, of a warp
    uint32_t to[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[half][i] = area + lane / 4 % 4 * 4 +
                      Area::Offset(lane % 4 * 2 + i, (warp * kHalves + half) * 2 + lane / 16);
      }
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      if (j > 0 && j % 8 == 0 && first + j * 8 >= num_rows) break;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = first / 2 + j * 4 + half * 2 + i;
          StoreShared(to[half][i] + j * 8 * Area::kRowBytes,
                      kGateUp ? SiluMul(limits, sums[at], sums[at + 2]) : sums[at]);
        }
      }
    }
  } else if constexpr (kGateUp) {
    constexpr int kMatrices = kRows / 8 < 4 ? kRows / 8 : 4;  // eight rows each
    const uint32_t to = area + Area::Offset(lane % (8 * kMatrices), warp);
#pragma unroll
    for (int j = 0; j < kRows / 8; j += kMatrices) {
      if (j > 0 && j % 8 == 0 && first + j * 8 >= num_rows) break;
      uint32_t values[kMatrices];
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) {
        const int at = first / 2 + (j + i) * 4;
        values[i] = PackBf16(SiluMul(limits, sums[at], sums[at + 2]),
                             SiluMul(limits, sums[at + 1], sums[at + 3]));
      }
      StoreMatricesTransposed(to + j * 8 * Area::kRowBytes, values);
    }
  } else {
    constexpr int kMatrices = kRows / 8 < 2 ? 2 : 4;  // two of each eight rows
    const uint32_t to = area + Area::Offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < kRows / 8; j += kMatrices / 2) {
      if (j > 0 && j % 8 == 0 && first + j * 8 >= num_rows) break;
      uint32_t values[kMatrices];
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) {
        values[i] = PackBf16(sums[first / 2 + j * 4 + i * 2], sums[first / 2 + j * 4 + i * 2 + 1]);
      }
      StoreMatricesTransposed(to + j * 8 * Area::kRowBytes, values);
    }
  }
}

/// `left` results at `from` in shared memory, fewer than a piece has, into y.
template <bool kFloats>
__device__ __forceinline__ void PutEdge(const MatMulArguments& args, uint32_t from, int64_t at,
                                        int left) {
#pragma unroll 1
  for (int i = 0; i < left; ++i) {
    if constexpr (kFloats) {
      float value;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from + i * 4) : "memory");
      float* const y = static_cast<float*>(args.y) + at + i;
      *y = args.accumulate ? __fadd_rn(*y, value) : value;
    } else {
      uint16_t value;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from + i * 2) : "memory");
      static_cast<uint16_t*>(args.y)[at + i] = value;
    }
  }
}

/// Rows of y: numbers[i] is that of row i, or they follow each other.
struct ResultRows {
  const int32_t* numbers;
  int first;
  __device__ __forceinline__ int64_t operator()(int row) const {
    return numbers != nullptr ? numbers[row] : first + row;
  }
};

/// `count` rows of `area`, at most its kRows, into columns `column0` and so on of y.
template <typename Area>
__device__ __forceinline__ void PutRows(const MatMulArguments& args, uint32_t area,
                                        const ResultRows& rows, int count, int column0,
                                        int columns) {
  constexpr int kPieceColumns = Area::kColumns / Area::kPieces;
  constexpr int kPasses = Area::kRows / Area::kRowsPerPass, kTogether = 2;
  const int thread = threadIdx.x % 128;
  const int piece = thread % Area::kPieces, row0 = thread / Area::kPieces;
  const int column = column0 + piece * kPieceColumns;
  const int left = columns - column;
  if (left <= 0) return;
  // Rows of later passes have their pieces in the same places.
  const uint32_t from = area + Area::Offset(row0, piece);
  constexpr int kPassBytes = Area::kRowsPerPass * Area::kRowBytes;
  if (left < kPieceColumns) {
#pragma unroll 1
    for (int pass = 0; pass < kPasses && row0 + pass * Area::kRowsPerPass < count; ++pass) {
      const int64_t row = rows(row0 + pass * Area::kRowsPerPass);
      PutEdge<Area::kFloats>(args, from + pass * kPassBytes, row * args.y_stride + column, left);
    }
    return;
  }
  // Two at a time: sums may still take most registers.
#pragma unroll 1
  for (int pass = 0; pass < kPasses; pass += kTogether) {
    uint4* to[kTogether];
    uint4 values[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = row0 + (pass + i) * Area::kRowsPerPass;
      if (row >= count) break;
      values[i] = LoadShared(from + (pass + i) * kPassBytes);
      const int64_t at = rows(row) * args.y_stride + column;
      to[i] =
          reinterpret_cast<uint4*>(static_cast<uint8_t*>(args.y) + at * (Area::kFloats ? 4 : 2));
    }
    if (Area::kFloats && args.accumulate) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (row0 + (pass + i) * Area::kRowsPerPass >= count) break;
        values[i] = AddFour(*to[i], values[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (row0 + (pass + i) * Area::kRowsPerPass >= count) break;
      *to[i] = values[i];
    }
  }
}

/// As PutRows, where results have destinations; from row `first` on.
template <typename Area>
__device__ __forceinline__ void PutRowsIn(const MatMulArguments& args, uint32_t area, int first,
                                          int count, int column) {
  const MatMulDestination& to = DestinationOf(args, column);
  const int thread = threadIdx.x % 128;
  const int piece = thread % Area::kPieces;
#pragma unroll 1
  for (int row = thread / Area::kPieces; row < count; row += Area::kRowsPerPass) {
    const uint4 bits = LoadShared(area + Area::Offset(row, piece));
    PutFourIn(to, first + row, column + piece * 4,
              make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                          __uint_as_float(bits.w)));
  }
}

/// Rows of y that a routing gives, of which a thread has every 128th. They are asked for before the
/// sums, so that they are there after them.
template <typename Body>
struct RowNumbers {
  static constexpr int kCount = (Body::kTokens + 127) / 128;
  bool given;
  int32_t numbers[kCount];

  __device__ __forceinline__ RowNumbers(const MatMulArguments& args, const MatMulTile& tile)
      : given(args.pairs != nullptr && !args.gate_up) {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      numbers[i] = given && i * 128 + thread < tile.num_rows
                       ? __ldcg(args.pairs + tile.first_row + i * 128 + thread)
                       : 0;
    }
  }
};

/// All of a warpgroup's results through `area`, which is its part of a stage.
template <typename Body, typename Area>
__device__ __forceinline__ void StoreThrough(const MatMulArguments& args,
                                             typename Body::Shared& shared, uint32_t area,
                                             const MatMulTile& tile, int group,
                                             const RowNumbers<Body>& numbers,
                                             const float (&sums)[Body::kTokens / 2]) {
  constexpr int kRows = Area::kRows < Body::kTokens ? Area::kRows : Body::kTokens;
  const int thread = threadIdx.x % 128;
  const int column0 = (tile.first_unit_row + group) * Area::kColumns;
  const int columns = Area::kColumns == 32 ? args.n / 2 : args.n;
  NamedSync(1 + group, 128);  // the group's other warps have read their part of the weights
#pragma unroll
  for (int first = 0; first < Body::kTokens; first += kRows) {
    if (first >= tile.num_rows) break;
    constexpr int kNumbers = Body::kMostRowNumbers;
    if (first % kNumbers == 0 && numbers.given && thread < kNumbers) {
      shared.rows[group][thread] = numbers.numbers[first / 128];
    }
    PutSums<Area, kRows>(area, sums, first, tile.num_rows, LimitsOf(args, tile));
    NamedSync(1 + group, 128);
    const int count = min(kRows, tile.num_rows - first);
    if (Area::kFloats && Area::kColumns == 64 && args.num_destinations > 0) {
      PutRowsIn<Area>(args, area, tile.first_row + first, count, column0);
    } else {
      const ResultRows rows = {numbers.given ? shared.rows[group] + first % kNumbers : nullptr,
                               tile.first_row + first};
      PutRows<Area>(args, area, rows, count, column0, columns);
    }
    NamedSync(1 + group, 128);
  }
}

// ---- the segments of a cluster ----

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

/// Groups of four results that a thread has in flight, and parts of each, when it adds up segments.
inline constexpr int kFoldItems = 2;
inline constexpr int kFoldParts = 4;

/// sums[i] = four results at places[i], added over the segments in order. Segment j is in the block
/// `first_rank + j * step` of the cluster.
__device__ __forceinline__ void SumOverSegments(const uint32_t (&places)[kFoldItems], int segments,
                                                int first_rank, int step,
                                                float4 (&sums)[kFoldItems]) {
#pragma unroll 1
  for (int first = 0; first < segments; first += kFoldParts) {
    float4 parts[kFoldItems][kFoldParts];
#pragma unroll
    for (int j = 0; j < kFoldParts; ++j) {
      if (first + j >= segments) break;
#pragma unroll
      for (int i = 0; i < kFoldItems; ++i) {
        parts[i][j] = LoadClusterShared(places[i], first_rank + (first + j) * step);
      }
    }
#pragma unroll
    for (int j = 0; j < kFoldParts; ++j) {
      if (first + j >= segments) break;
#pragma unroll
      for (int i = 0; i < kFoldItems; ++i) {
        sums[i] = first + j == 0 ? parts[i][j] : AddFour(sums[i], parts[i][j]);
      }
    }
  }
}

/// Puts four results at columns column .. column + 3 of y's row, as far as it has them.
__device__ __forceinline__ void PutFour(const MatMulArguments& args, int64_t row, int column,
                                        int columns, float4 value) {
  const int left = columns - column;
  const int64_t at = row * args.y_stride + column;
  if (args.bf16_output) {
    auto* const y = static_cast<uint16_t*>(args.y) + at;
    const uint2 pairs = make_uint2(PackBf16(value.x, value.y), PackBf16(value.z, value.w));
    if (left >= 4) {
      *reinterpret_cast<uint2*>(y) = pairs;
      return;
    }
    if (left > 0) y[0] = static_cast<uint16_t>(pairs.x);
    if (left > 1) y[1] = static_cast<uint16_t>(pairs.x >> 16);
    if (left > 2) y[2] = static_cast<uint16_t>(pairs.y);
    return;
  }
  float* const y = static_cast<float*>(args.y) + at;
  if (left >= 4) {
    if (args.accumulate) value = AddFour(*reinterpret_cast<const float4*>(y), value);
    *reinterpret_cast<float4*>(y) = value;
    return;
  }
  if (left > 0) y[0] = args.accumulate ? __fadd_rn(y[0], value.x) : value.x;
  if (left > 1) y[1] = args.accumulate ? __fadd_rn(y[1], value.y) : value.y;
  if (left > 2) y[2] = args.accumulate ? __fadd_rn(y[2], value.z) : value.z;
}

/// Puts this block's part of the tile's rows of y, whose segments stand at `sums` in the blocks of
/// the cluster.
__device__ __forceinline__ void PutClusterRows(const MatMulArguments& args, const MatMulTile& tile,
                                               const ClusterPlace& place, uint32_t sums,
                                               int unit_row) {
  using Area = ResultArea<true, kWeightRows>;
  const int segments = args.cluster_segments;
  const int log_groups = args.gate_up ? 3 : 4;  // groups of four results, of a row
  const int columns = args.gate_up ? args.n / 2 : args.n;
  const int items = tile.num_rows << log_groups;
  const int step = segments * 128;
#pragma unroll 1
  for (int first = place.segment * 128 + static_cast<int>(threadIdx.x) % 128; first < items;
       first += kFoldItems * step) {
    uint32_t at[kFoldItems];
    float4 values[kFoldItems];
#pragma unroll
    for (int i = 0; i < kFoldItems; ++i) {
      const int item = min(first + i * step, items - 1);  // past the end: not used
      const int group = item & ((1 << log_groups) - 1);
      at[i] =
          sums + Area::Offset(item >> log_groups, args.gate_up ? group / 2 * 4 + group % 2 : group);
    }
    SumOverSegments(at, segments, place.share, args.shares, values);
    if (args.gate_up) {
      float4 up[kFoldItems];
#pragma unroll
      for (int i = 0; i < kFoldItems; ++i) at[i] ^= 32;  // two pieces further on
      SumOverSegments(at, segments, place.share, args.shares, up);
#pragma unroll
      for (int i = 0; i < kFoldItems; ++i) values[i] = SiluMul(args.limits[0], values[i], up[i]);
    }
#pragma unroll
    for (int i = 0; i < kFoldItems; ++i) {
      const int item = first + i * step;
      int column = ((unit_row << log_groups) + (item & ((1 << log_groups) - 1))) * 4;
      const int row = tile.first_row + (item >> log_groups);
      if (item >= items || column >= columns) continue;
      if (args.num_destinations > 0) {
        const MatMulDestination& to = DestinationOf(args, column);
        PutFourIn(to, row, column, values[i]);
      } else {
        PutFour(args, row, column, columns, values[i]);
      }
    }
  }
}

/// What comes after the sums of a tile. `stage` is the last one that this warpgroup has read and
/// not released: its part of the weights there is its own.
template <typename Body>
__device__ __forceinline__ void StoreResults(const MatMulArguments& args,
                                             typename Body::Shared& shared, int stage,
                                             const MatMulTile& tile, const ClusterPlace& place,
                                             int group, const RowNumbers<Body>& numbers,
                                             const float (&sums)[Body::kTokens / 2]) {
  if constexpr (Body::kForm == SegmentForm::kCluster) {
    // The block's only tile: all stages have been read once all warps are here.
    const uint32_t area = SharedAddress(shared.x[0]) + group * Body::kTokens * kSumsRowBytes;
    NamedSync(1 + Body::kWarpgroups, Body::kWarpgroups * 128);
    PutSums<ResultArea<true, kWeightRows>, Body::kTokens>(area, sums, 0, tile.num_rows,
                                                          args.limits[0]);
    ClusterArrive();
    ClusterWait();
    PutClusterRows(args, tile, place, area, tile.first_unit_row + group);
    return;
  }
  const uint32_t area = SharedAddress(shared.weights[stage][group]);
  if (args.gate_up) {
    if (args.bf16_output) {
      StoreThrough<Body, ResultArea<false, 32>>(args, shared, area, tile, group, numbers, sums);
    } else {
      StoreThrough<Body, ResultArea<true, 32>>(args, shared, area, tile, group, numbers, sums);
    }
  } else if (args.bf16_output) {
    StoreThrough<Body, ResultArea<false, 64>>(args, shared, area, tile, group, numbers, sums);
  } else {
    StoreThrough<Body, ResultArea<true, 64>>(args, shared, area, tile, group, numbers, sums);
  }
}

}  // namespace outrider::cuda
