// The state of one head in the registers of a block of 128 threads, 128 numbers in each, and its
// products on tensor cores. Operands are split into two parts of TF32 (tf32_parts.h), sums are
// float32.
#pragma once

#include "outrider/kernels/cuda/kda/kda_instructions.cuh"
#include "outrider/kernels/cuda/kda/kda_shared.cuh"
#include "outrider/kernels/cuda/kda/tf32_parts.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

/// To be measured: the products of rows on tensor cores, or on CUDA cores.
inline constexpr bool kKdaReadsOnTensorCores = true;
/// To be measured: high parts of the state are cut off instead of rounded.
inline constexpr bool kKdaCutsState = false;

/// A warp has all key channels of 32 value channels. With g = lane / 4 and i = lane % 4 a lane has
/// of each 16 key channels 4 i + c, c = 0..3, of value channels 4 g + v, v = 0..3. Tensor cores
/// take slices of 8 key channels, two of 16 channels: slice e has c = e in its columns 0..3, c =
/// e + 2 in columns 4..7 of a left operand, both in turn in the columns of a sum. Rows g and g + 8
/// of a left operand and of a sum m are v = 2 m and 2 m + 1. So a lane's numbers are those that it
/// has of an operand and of a sum.
class KdaState {
 public:
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int i = 0; i < 16; ++i) numbers_[s][i / 4][i % 4] = 0.0F;
    }
  }

  /// from: [D, D], by key and value channel.
  __device__ __forceinline__ void Load(const float* from) {
    from += Lane().Place();
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float4 x = LoadFour(from + (16 * s + c) * kKdaDim);
        numbers_[s][c][0] = x.x, numbers_[s][c][1] = x.y;
        numbers_[s][c][2] = x.z, numbers_[s][c][3] = x.w;
      }
    }
  }

  __device__ __forceinline__ void Store(float* to) const {
    to += Lane().Place();
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float(&x)[4] = numbers_[s][c];
        StoreFour(to + (16 * s + c) * kKdaDim, make_float4(x[0], x[1], x[2], x[3]));
      }
    }
  }

  /// The products of rows [first, rows) of a block of tokens with the state. A sum is three chains
  /// over slices: of products of high parts, of the state's low parts, of the row's low parts; the
  /// last two are added, then the first.
  __device__ __forceinline__ void Read(KdaShared& shared, int stage, int first, int rows) const {
    if constexpr (kKdaReadsOnTensorCores) {
      int t = first;
#pragma unroll 1
      for (; t + kRowsOfOperand < rows; t += 2 * kRowsOfOperand) {
        ReadRows<2>(shared, stage, t, rows);
      }
      if (t + kFewRows < rows) {
        ReadRows<1>(shared, stage, t, rows);
      } else if (t < rows) {
        ReadFew(shared, stage, t, rows);
      }
    } else {
#pragma unroll 1
      for (int t = first; t < rows; ++t) ReadRow(shared, stage, t);
    }
  }

  /// The state of the next block of tokens. What the block adds is summed from zero, products with
  /// low parts first. Value channels in two pairs, one after the other: parts of u take registers.
  __device__ __forceinline__ void Advance(const KdaShared& shared, int stage) {
    Advance<0>(shared, stage);
    Advance<1>(shared, stage);
  }

 private:
  static constexpr int kSixteens = kKdaDim / 16;
  static constexpr int kRowsOfOperand = 4;  // a key and a query of each are its eight columns
  static constexpr int kFewRows = 2;        // high parts in four columns, low parts in the others

  /// Where a lane is. It is read again wherever it is needed: registers are few.
  struct Lane {
    __device__ __forceinline__ Lane() : Lane(ThreadHere()) {}
    __device__ __forceinline__ explicit Lane(int thread)
        : g(thread % 32 / 4), i(thread % 4), value_channel(thread / 32 * 32 + 4 * g) {}

    /// In memory, of its first number.
    __device__ __forceinline__ int Place() const { return 4 * i * kKdaDim + value_channel; }

    int g;
    int i;
    int value_channel;
  };

  /// The lane's first key channel of a row's k P or, in odd columns of an operand, q P.
  static __device__ __forceinline__ const float* RowOfColumn(const KdaShared& shared, int stage,
                                                             int row, const Lane& lane) {
    return &(lane.g % 2 == 0 ? shared.k : shared.q)[stage][row][4 * lane.i];
  }

  /// Of left operands m.
  template <int m>
  __device__ __forceinline__ void Advance(const KdaShared& shared, int stage) {
    const Lane lane;
    uint32_t high[2][4];  // of u: by slice of 8 tokens
    uint32_t low[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = *reinterpret_cast<const float2*>(
          &shared.value[stage][4 * i + lane.i][lane.value_channel + 2 * m]);
      const Tf32Parts first = SplitForTf32(u.x);
      const Tf32Parts second = SplitForTf32(u.y);
      high[i / 2][i % 2 * 2] = first.high, high[i / 2][i % 2 * 2 + 1] = second.high;
      low[i / 2][i % 2 * 2] = first.low, low[i / 2][i % 2 * 2 + 1] = second.low;
    }
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      uint32_t key_high[2][2][2];  // by slice of key channels, slice of tokens
      uint32_t key_low[2][2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 keys = *reinterpret_cast<const float2*>(
            &shared.decay[stage][4 * i + lane.i][16 * s + 2 * lane.g]);
        const Tf32Parts first = SplitForTf32(keys.x);
        const Tf32Parts second = SplitForTf32(keys.y);
        key_high[0][i / 2][i % 2] = first.high, key_high[1][i / 2][i % 2] = second.high;
        key_low[0][i / 2][i % 2] = first.low, key_low[1][i / 2][i % 2] = second.low;
      }
      const float4 product = LoadFour(&shared.product[16 * s + 4 * lane.i]);
      const float products[4] = {product.x, product.y, product.z, product.w};
      float sums[2][4] = {};
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
        for (int e = 0; e < 2; ++e) MultiplyTf32(sums[e], low[tokens], key_high[e][tokens]);
#pragma unroll
        for (int e = 0; e < 2; ++e) MultiplyTf32(sums[e], high[tokens], key_low[e][tokens]);
      }
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
        for (int e = 0; e < 2; ++e) MultiplyTf32(sums[e], high[tokens], key_high[e][tokens]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          float& number = numbers_[s][c][2 * m + v];
          number = __fmaf_rn(products[c], number, sums[c % 2][v * 2 + c / 2]);
        }
      }
    }
  }

  /// The parts of left operand m of a slice.
  __device__ __forceinline__ void Split(int s, int e, int m, uint32_t (&high)[4],
                                        uint32_t (&low)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = Here(numbers_[s][e + i / 2 * 2][2 * m + i % 2]);
      const Tf32Parts parts = kKdaCutsState ? CutForTf32(x) : SplitForTf32(x);
      high[i] = parts.high;
      low[i] = parts.low;
    }
  }

  /// Rows from t on, four in each operand.
  template <int kOperands>
  __device__ __forceinline__ void ReadRows(KdaShared& shared, int stage, int t, int rows) const {
    ReadRows<kOperands, 0>(shared, stage, t, rows);
    ReadRows<kOperands, 1>(shared, stage, t, rows);
  }

  /// Of left operands m.
  template <int kOperands, int m>
  __device__ __forceinline__ void ReadRows(KdaShared& shared, int stage, int t, int rows) const {
    // Columns of rows that do not run are those of the last that does.
    const Lane lane;
    const float* row[kOperands];
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
      row[n] = RowOfColumn(shared, stage, min(t + n * kRowsOfOperand + lane.g / 2, rows - 1), lane);
    }
    float sums[kOperands][4] = {};
    float state_low[kOperands][4] = {};
    float row_low[kOperands][4] = {};
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      float4 x[kOperands];
#pragma unroll
      for (int n = 0; n < kOperands; ++n) x[n] = LoadFour(row[n] + 16 * s);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint32_t high[4];
        uint32_t low[4];
        Split(s, e, m, high, low);
#pragma unroll
        for (int n = 0; n < kOperands; ++n) {
          const Tf32Parts first = SplitForTf32(e == 0 ? x[n].x : x[n].y);
          const Tf32Parts second = SplitForTf32(e == 0 ? x[n].z : x[n].w);
          const uint32_t column_high[2] = {first.high, second.high};
          const uint32_t column_low[2] = {first.low, second.low};
          MultiplyTf32(sums[n], high, column_high);
          MultiplyTf32(row_low[n], high, column_low);
          MultiplyTf32(state_low[n], low, column_high);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
      Put(shared, t + n * kRowsOfOperand, rows, m, sums[n], state_low[n], row_low[n]);
    }
  }

  /// One row or two: their low parts are columns of the operand that has the high ones.
  __device__ __forceinline__ void ReadFew(KdaShared& shared, int stage, int t, int rows) const {
    const Lane lane;
    const float* const row = RowOfColumn(shared, stage, min(t + lane.g / 2 % 2, rows - 1), lane);
    const bool is_low = lane.g >= 4;
    float sums[2][4] = {};  // in lanes of low columns row_low of ReadRows
    float state_low[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      const float4 x = LoadFour(row + 16 * s);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Tf32Parts first = SplitForTf32(e == 0 ? x.x : x.y);
        const Tf32Parts second = SplitForTf32(e == 0 ? x.z : x.w);
        const uint32_t column[2] = {is_low ? first.low : first.high,
                                    is_low ? second.low : second.high};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t high[4];
          uint32_t low[4];
          Split(s, e, m, high, low);
          MultiplyTf32(sums[m], high, column);
          MultiplyTf32(state_low[m], low, column);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float row_low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) row_low[i] = __shfl_xor_sync(~0u, sums[m][i], 2);
      Put(shared, t, min(rows, t + kFewRows), m, sums[m], state_low[m], row_low);
    }
  }

  /// Those of sum m of an operand that begins with row t.
  static __device__ __forceinline__ void Put(KdaShared& shared, int t, int rows, int m,
                                             const float (&sums)[4], const float (&state_low)[4],
                                             const float (&row_low)[4]) {
    const Lane lane;
    if (t + lane.i >= rows) return;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __fadd_rn(sums[i], __fadd_rn(state_low[i], row_low[i]));
    }
    const int channel = lane.value_channel + 2 * m;
    *reinterpret_cast<float2*>(&shared.of_key[t + lane.i][channel]) = make_float2(x[0], x[2]);
    *reinterpret_cast<float2*>(&shared.of_query[t + lane.i][channel]) = make_float2(x[1], x[3]);
  }

  /// Row t on CUDA cores: chains over a lane's 32 key channels, then a tree over four lanes.
  __device__ __forceinline__ void ReadRow(KdaShared& shared, int stage, int t) const {
    const Lane lane;
    const float* const k = &shared.k[stage][t][4 * lane.i];
    const float* const q = &shared.q[stage][t][4 * lane.i];
    float x[8] = {};  // of four value channels: with the key, then with the query
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      AddProducts(LoadFour(k + 16 * s), s, x);
      AddProducts(LoadFour(q + 16 * s), s, x + 4);
    }
    ScatterSums<8, 2, 2>(x, lane.i);
    KdaTile& to = lane.i >= 2 ? shared.of_query : shared.of_key;
    *reinterpret_cast<float2*>(&to[t][lane.value_channel + lane.i % 2 * 2]) =
        make_float2(x[0], x[1]);
  }

  __device__ __forceinline__ void AddProducts(const float4& row, int s, float* x) const {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      x[v] = __fmaf_rn(row.x, numbers_[s][0][v], x[v]);
      x[v] = __fmaf_rn(row.y, numbers_[s][1][v], x[v]);
      x[v] = __fmaf_rn(row.z, numbers_[s][2][v], x[v]);
      x[v] = __fmaf_rn(row.w, numbers_[s][3][v], x[v]);
    }
  }

  float numbers_[kSixteens][4][4];  // by 16 key channels, key channel of the lane's, value channel
};

}  // namespace outrider::cuda
