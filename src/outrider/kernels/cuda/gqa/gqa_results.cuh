// Results of rows in the grouped-query attention kernel: folds of splits, partial results, outputs.
// Thread layout: that of a wgmma result, two rows of a tile, 8 apart, and 32 of their columns:
// output[4 j + 2 h + e] is column 8 j + 2 (lane % 4) + e of row 8 h + lane / 4 + 16 warp.
#pragma once

#include "outrider/kernels/cuda/gqa/gqa_block.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_columns.cuh"

namespace outrider::cuda {

/// What a row's result has beside its columns, which are sums with weights 2^(score - reference).
struct GqaRowState {
  float reference = -INFINITY;  // integral, log2 domain; -inf: no visible key
  float sum = 0.0F;
};

/// The factors with which a row's columns so far and the next split's are added up.
__device__ __forceinline__ GqaRowState FoldGqaRow(const GqaRowState& before,
                                                  const GqaRowState& next, float* keep,
                                                  float* add) {
  const float reference = fmaxf(before.reference, next.reference);
  *keep = PowerOfTwo(before.reference - reference);
  *add = PowerOfTwo(next.reference - reference);
  return {reference, __fmaf_rn(before.sum, *keep, __fmul_rn(next.sum, *add))};
}

__device__ __forceinline__ float FoldGqaColumn(float before, float next, float keep, float add) {
  return __fmaf_rn(before, keep, __fmul_rn(next, add));
}

/// What a row's columns are multiplied by at the end.
__device__ __forceinline__ float GqaOutputFactor(const GqaKernelArguments& args, float sum, int row,
                                                 int head) {
  float weight = 1.0F;
  if (args.gates != nullptr) {
    const float gate = __bfloat162float(args.gates[row * args.gate_stride + head]);
    weight = __fdiv_rn(1.0F, __fadd_rn(1.0F, Exp2(__fmul_rn(gate, -1.4426950408889634F))));
  }
  return __fdiv_rn(weight, sum);
}

/// The rows of a warpgroup's tile.
struct GqaTile {
  int first_row;    // of the step: its first token's
  int first_head;   // query head
  int rows;         // (token, head) pairs
  int row_in_item;  // the first
  int item_rows;    // of partial results, a multiple of kGqaUnitRows
  int row_heads;

  __device__ __forceinline__ GqaTile(const GqaKernelArguments& args, const GqaItem& item,
                                     int group) {
    row_heads = args.row_heads;
    const int first = group * args.tile_tokens;
    const int tokens = max(0, min(args.tile_tokens, item.tokens - first));
    first_row = item.first_row + first;
    first_head = item.head * row_heads;
    rows = tokens * row_heads;
    row_in_item = first * row_heads;
    item_rows = (item.tokens * row_heads + kGqaUnitRows - 1) / kGqaUnitRows * kGqaUnitRows;
  }
  __device__ __forceinline__ int Token(int row) const { return first_row + row / row_heads; }
  __device__ __forceinline__ int Head(int row) const { return first_head + row % row_heads; }
  /// Where the partial results of row 0 are, in rows of the workspace.
  __device__ __forceinline__ int64_t PartialRow(const GqaItem& item, int partial) const {
    return static_cast<int64_t>(item.first_unit) * kGqaUnitRows +
           (static_cast<int64_t>(item.head) * item.partials + partial) * item_rows + row_in_item;
  }
};

/// Leaves a partial result. `sum` is the whole row's.
__device__ __forceinline__ void LeavePartial(const GqaWorkspace& workspace, const GqaItem& item,
                                             const GqaTile& tile, int partial, int row0,
                                             const GqaRowState (&state)[2],
                                             const float (&output)[64]) {
  const int64_t first = tile.PartialRow(item, partial);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + 8 * h;
    if (row >= tile.rows) continue;
    float* const to = workspace.outputs + (first + row) * kGqaHeadDim + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      __stcg(reinterpret_cast<float2*>(to + 8 * j),
             make_float2(output[4 * j + 2 * h], output[4 * j + 2 * h + 1]));
    }
    if (lane % 4 == 0) {
      __stcg(workspace.stats + first + row, make_float2(state[h].reference, state[h].sum));
    }
  }
}

/// Writes outputs: through `place`, the warpgroup's queries, so that whole rows are stored at once.
template <int kBarrier>
__device__ __forceinline__ void WriteGqaOutputs(const GqaKernelArguments& args, const GqaTile& tile,
                                                uint8_t* place, int barrier, int row0,
                                                const GqaRowState (&state)[2],
                                                const float (&output)[64]) {
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + 8 * h;
    if (row >= tile.rows) continue;
    const float factor = GqaOutputFactor(args, state[h].sum, tile.Token(row), tile.Head(row));
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      *reinterpret_cast<uint32_t*>(place + j / 8 * kGqaHalfBytes + row * 128 +
                                   ((j % 8) ^ (row % 8)) * 16 + lane % 4 * 4) =
          PackBf16(__fmul_rn(output[4 * j + 2 * h], factor),
                   __fmul_rn(output[4 * j + 2 * h + 1], factor));
    }
  }
  NamedSync(kBarrier + barrier, 128);
  for (int i = thread; i < tile.rows * 16; i += 128) {
    const int row = i / 16;
    const int chunk = i % 16;
    const uint4 values = *reinterpret_cast<const uint4*>(
        place + chunk / 8 * kGqaHalfBytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16);
    *reinterpret_cast<uint4*>(args.output + tile.Token(row) * args.output_stride +
                              static_cast<int64_t>(tile.Head(row)) * kGqaHeadDim + chunk * 8) =
        values;
  }
}

/// Folds the partial results of a tile in order and writes its outputs: a warp per row, four
/// columns per lane. All threads of a warpgroup.
__device__ __forceinline__ void MergeGqaTile(const GqaKernelArguments& args, const GqaItem& item,
                                             const GqaTile& tile) {
  constexpr int kAhead = 8;
  const int warp = threadIdx.x % 128 / 32;
  const int lane = threadIdx.x % 32;
  const GqaWorkspace& workspace = args.workspace;
  for (int row = warp; row < tile.rows; row += 4) {
    const int64_t first = tile.PartialRow(item, 0) + row;
    GqaRowState state;
    float columns[4] = {};
    for (int begin = 0; begin < item.partials; begin += kAhead) {
      float4 values[kAhead];
      float2 stats[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int64_t at =
            first + static_cast<int64_t>(min(begin + i, item.partials - 1)) * tile.item_rows;
        values[i] =
            __ldcg(reinterpret_cast<const float4*>(workspace.outputs + at * kGqaHeadDim) + lane);
        stats[i] = __ldcg(workspace.stats + at);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (begin + i >= item.partials) break;
        const GqaRowState next = {stats[i].x, stats[i].y};
        const float part[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
        if (begin + i == 0) {
          state = next;
#pragma unroll
          for (int c = 0; c < 4; ++c) columns[c] = part[c];
          continue;
        }
        float keep;
        float add;
        state = FoldGqaRow(state, next, &keep, &add);
#pragma unroll
        for (int c = 0; c < 4; ++c) columns[c] = FoldGqaColumn(columns[c], part[c], keep, add);
      }
    }
    const int head = tile.Head(row);
    const float factor = GqaOutputFactor(args, state.sum, tile.Token(row), head);
    *reinterpret_cast<uint2*>(args.output + tile.Token(row) * args.output_stride +
                              static_cast<int64_t>(head) * kGqaHeadDim + 4 * lane) =
        make_uint2(PackBf16(__fmul_rn(columns[0], factor), __fmul_rn(columns[1], factor)),
                   PackBf16(__fmul_rn(columns[2], factor), __fmul_rn(columns[3], factor)));
  }
}

}  // namespace outrider::cuda
