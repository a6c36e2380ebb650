// A split's end, for the bf16 MLA decode kernel: the numbers of its rows, computed
// by threads that have their sums, and the columns, folded by threads that have the accumulator.
// Thread layout: that of a wgmma result, two rows of a tile per thread, 8 apart.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_merge.cuh"

namespace outrider::cuda {

/// Where a second part's first split finds what the first part left, or a negative number.
template <bool kSharedTiles>
__device__ __forceinline__ int EarlierUnit(const MlaItem& item) {
  return kSharedTiles ? item.earlier_unit() : -1;
}

/// The numbers of row `row` at a split's end: the split's reference and this thread's part of its
/// sum (four lanes share a row) into the row's state so far and `numbers`; where the split's end
/// gives a result, also the row's statistics or log-sum-exp. All lanes of a warp; one of four
/// writes.
template <bool kSharedTiles>
__device__ __forceinline__ void FinishRowNumbers(const MlaKernelArguments& args,
                                                 const MlaItem& item, const SplitWalk& walk,
                                                 int row, float reference, float sum,
                                                 MlaRowState* state, MlaSplitNumbers& numbers) {
  const int rows = item.num_rows();
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  const MlaRowState split = {reference, sum};
  float keep = 0.0f;
  float add = 1.0f;
  const int earlier_unit = EarlierUnit<kSharedTiles>(item);
  if (earlier_unit >= 0) {
    const int at = earlier_unit * kMlaUnitRows + min(row, rows - 1);
    const float2 earlier = __ldcg(&args.workspace.partial_stats[at]);
    *state = {earlier.x, earlier.y};
  }
  *state = walk.first_split ? split : FoldRow(*state, split, &keep, &add);
  if (threadIdx.x % 4 != 0) return;
  numbers.normal[row] = PowerOfTwo(-split.exponent());
  numbers.fold[row] = make_float2(keep, add);
  if (!walk.Emits(item) || row >= rows) return;
  if (item.leaves_partials()) {
    args.workspace.partial_stats[walk.PartialRow(item, rows, row)] =
        make_float2(state->reference, state->sum);
  } else {
    const int at = item.first_row + row;
    float lse;
    numbers.factor[row] = FinishRow(*state, args.value_scale, args.sink, at % args.heads, &lse);
    args.lse[at] = lse;
  }
}

/// Among four neighbouring lanes: lane `part` gets word `part` of each, in the order of lanes, so
/// that the four together store whole sectors.
__device__ __forceinline__ uint4 TransposeQuad(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                               int part) {
  const bool odd = part % 2 != 0;
  const bool high = part >= 2;
  const uint32_t ab = __shfl_xor_sync(~0u, odd ? a : b, 1);
  const uint32_t cd = __shfl_xor_sync(~0u, odd ? c : d, 1);
  // Word `part` % 2 (of a, b and of c, d) of this lane and its neighbour.
  const uint32_t ab0 = odd ? ab : a, ab1 = odd ? b : ab;
  const uint32_t cd0 = odd ? cd : c, cd1 = odd ? d : cd;
  const uint32_t other0 = __shfl_xor_sync(~0u, high ? ab0 : cd0, 2);
  const uint32_t other1 = __shfl_xor_sync(~0u, high ? ab1 : cd1, 2);
  return high ? make_uint4(other0, other1, cd0, cd1) : make_uint4(ab0, ab1, other0, other1);
}

/// Stores 256 columns of a thread's two rows, 8 apart, of which `rows` - 8 > 0 says whether the
/// second exists; word(2 * j + i) is columns 8 j + 2 * (lane % 4) and the next of row i.
template <typename Word>
__device__ __forceinline__ void StoreRows(uint8_t* at, int rows, Word word) {
  // Computed once and not before: registers are short.
  asm volatile("" : "+l"(at), "+r"(rows));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 64; j += 8) {
      const uint4 quad = TransposeQuad(word(j + i), word(j + i + 2), word(j + i + 4),
                                       word(j + i + 6), threadIdx.x % 4);
      if (8 * i < rows) {
        __stcg(reinterpret_cast<uint4*>(at + i * 8 * kResultRowBytes + 8 * j), quad);
      }
    }
  }
}

/// Folds a split's result: half `group` of the columns of rows `row0` and `row0` + 8 of the tile,
/// two columns at a time: columns[i] are those of the splits so far, output[2 * i] and the next the
/// split's. Where the split's end leaves a partial result, they are stored one by one as they are
/// folded: stores in a row hold the warp up. All lanes of a warp.
template <bool kSharedTiles>
__device__ __forceinline__ void FoldColumns(const MlaKernelArguments& args, const MlaItem& item,
                                            const SplitWalk& walk, const int& epoch, int group,
                                            int row0, const MlaSplitNumbers& numbers,
                                            const float (&output)[128], __half2 (&columns)[64]) {
  const float normal[2] = {numbers.normal[row0], numbers.normal[row0 + 8]};
  auto rounded = [&](int i) {
    return __floats2half2_rn(output[2 * i] * normal[i % 2], output[2 * i + 1] * normal[i % 2]);
  };
  const bool leaves = item.leaves_partials() && walk.Emits(item);
  uint4* left = nullptr;
  if (leaves) {
    const size_t unit = walk.PartialRow(item, item.num_rows(), row0) / kMlaUnitRows;
    left = ResultColumns(args.workspace, unit, group) + FreshThread() % 32;
  }
  auto leave = [&](int i) {
    if (leaves && i % 4 == 3) {
      __stcg(left + 32 * (i / 4), make_uint4(BitsOf(columns[i - 3]), BitsOf(columns[i - 2]),
                                             BitsOf(columns[i - 1]), BitsOf(columns[i])));
    }
  };
  if (walk.first_split) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      columns[i] = rounded(i);
      leave(i);
    }
    return;
  }
  if (kSharedTiles && item.is_second_part()) {
    WaitForResults(args.workspace, TilePlanIndex(item), 1, epoch);
    __syncwarp();
    const int unit = EarlierUnit<kSharedTiles>(item) + row0 / kMlaUnitRows;
    const uint4* at = ResultColumns(args.workspace, unit, group) + FreshThread() % 32;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint4 words = __ldcg(at + 32 * i);
      columns[4 * i] = HalvesOf(words.x);
      columns[4 * i + 1] = HalvesOf(words.y);
      columns[4 * i + 2] = HalvesOf(words.z);
      columns[4 * i + 3] = HalvesOf(words.w);
    }
  }
  __half2 keep[2];
  __half2 add[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 factors = numbers.fold[row0 + 8 * i];
    keep[i] = __float2half2_rn(factors.x);
    add[i] = __float2half2_rn(factors.y);
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    columns[i] = FoldColumns(columns[i], rounded(i), keep[i % 2], add[i % 2]);
    leave(i);
  }
}

/// Writes the output of a tile's last split, of those columns and rows. All lanes of a warp.
template <typename Results = PlainResults>
__device__ __forceinline__ void WriteOutput(const MlaKernelArguments& args, const MlaItem& item,
                                            int group, int row0, const MlaSplitNumbers& numbers,
                                            const __half2 (&columns)[64],
                                            const Results& results = {}) {
  const float factor[2] = {numbers.factor[row0], numbers.factor[row0 + 8]};
  StoreRows(reinterpret_cast<uint8_t*>(args.output) +
                (static_cast<size_t>(item.first_row) + row0) * kResultRowBytes +
                group * (kResultRowBytes / 2) + FreshThread() % 4 * 16,
            item.num_rows() - row0, [&](int i) {
              // A row that is none is not written; it is taken for the last.
              const int row = min(row0 + i % 2 * 8, item.num_rows() - 1);
              return results(item.first_row + row, group, i / 2 * 8, columns[i], factor[i % 2]);
            });
}

}  // namespace outrider::cuda
