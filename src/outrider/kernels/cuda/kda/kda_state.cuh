// The state of one head in the registers of blocks of 128 threads, and its products on tensor
// cores: of rows with it, and what a block of tokens adds to it. Operands are in two parts of TF32
// (tf32_parts.h), sums in float32.
#pragma once

#include "outrider/kernels/cuda/kda/kda_instructions.cuh"
#include "outrider/kernels/cuda/kda/kda_shared.cuh"
#include "outrider/kernels/cuda/kda/tf32_parts.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

/// A warp has all key channels of 16 kTiles value channels. With g = lane / 4 and i = lane % 4 a
/// lane has of each 16 key channels 4 i + c, c = 0..3, of each 16 value channels 2 g and 2 g + 1.
/// Tensor cores take 16 value channels as rows, 8 key channels as columns: tile (m, e) has 2 g and
/// 2 g + 1 of value channels 16 m to 16 m + 15 in rows g and g + 8. As a left operand it has c = e
/// in columns 0..3, c = e + 2 in columns 4..7; as a sum both in turn. So a lane's numbers are those
/// that it has of operands and of sums.
template <int kTiles>
class KdaState {
 public:
  static constexpr int kValues = kKdaWarps * kTiles * 16;  // value channels of the block

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
#pragma unroll
      for (float& x : Four(n)) x = 0.0F;
    }
  }

  /// from: the block's first number, in memory (KdaStatePlace).
  __device__ __forceinline__ void Load(const float* from) {
    from += ThreadPlace().Place();
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const float4 x = LoadFour(from + PlaceOfFour(n));
      float(&four)[4] = Four(n);
      four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
    }
  }

  __device__ __forceinline__ void Store(float* to) {
    to += ThreadPlace().Place();
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const float(&x)[4] = Four(n);
      StoreFour(to + PlaceOfFour(n), make_float4(x[0], x[1], x[2], x[3]));
    }
  }

  /// The products of rows [first, rows) of a block of tokens with the state. A sum is three chains
  /// over slices: of products of high parts, of the state's low parts, of the row's low parts; the
  /// last two are added, then the first.
  __device__ __forceinline__ void Read(KdaShared& shared, int stage, int first, int rows) const {
    if constexpr (kTiles == 1) {
      ReadRows<kStateBlock / kRowsOfOperand>(shared, stage, first, rows);
    } else {
      int t = first;
#pragma unroll 1
      for (; t + kFewRows < rows; t += kRowsOfOperand) ReadRows<1>(shared, stage, t, rows);
      if (t < rows) ReadFew(shared, stage, t, rows);
    }
  }

  /// The state of the next block of tokens. What the block adds is summed from zero, products with
  /// low parts first.
  __device__ __forceinline__ void Advance(const KdaShared& shared, int stage) {
    AdvanceTiles<0>(shared, stage);
    if constexpr (kTiles == 2) AdvanceTiles<1>(shared, stage);
  }

 private:
  static constexpr int kSixteens = kKdaDim / 16;
  static constexpr int kFours = kTiles * kSixteens * 2;
  static constexpr int kRowsOfOperand = 4;  // a key and a query of each are its eight columns
  static constexpr int kFewRows = 2;        // high parts in four columns, low parts in the others

  struct ThreadPlace {
    /// In memory, of its first number.
    __device__ __forceinline__ int Place() const {
      return static_cast<int>(thread / 32 * kTiles * 16 * kKdaDim + thread % 32 * 4);
    }

    uint32_t thread = FreshThread();
    int g = static_cast<int>(thread % 32 / 4);
    int i = static_cast<int>(thread % 4);
    int value_channel = static_cast<int>(thread / 32 * kTiles * 16) + 2 * g;  // of the block's
  };

  /// The lane's first key channel of a row's k P or, in odd columns of an operand, q P.
  static __device__ __forceinline__ const float* RowOfColumn(const KdaShared& shared, int stage,
                                                             int row, const ThreadPlace& place) {
    return &(place.g % 2 == 0 ? shared.k : shared.q)[stage][row][4 * place.i];
  }

  /// The parts of tile (m, e) of sixteen key channels as a left operand.
  __device__ __forceinline__ void Split(int s, int e, int m, uint32_t (&high)[4],
                                        uint32_t (&low)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tf32Parts parts = CutForTf32(Here(numbers_[s][e][m][i]));
      high[i] = parts.high;
      low[i] = parts.low;
    }
  }

  /// Rows from t on, four in each operand. Columns of rows that do not run are those of the last.
  template <int kOperands>
  __device__ __forceinline__ void ReadRows(KdaShared& shared, int stage, int t, int rows) const {
    const ThreadPlace place;
    const float* row[kOperands];
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
      row[n] =
          RowOfColumn(shared, stage, min(t + n * kRowsOfOperand + place.g / 2, rows - 1), place);
    }
    float sums[kOperands][kTiles][4] = {};
    float state_low[kOperands][kTiles][4] = {};
    float row_low[kOperands][kTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      float4 x[kOperands];
#pragma unroll
      for (int n = 0; n < kOperands; ++n) x[n] = LoadFour(row[n] + 16 * s);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint32_t high[kTiles][4];
        uint32_t low[kTiles][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) Split(s, e, m, high[m], low[m]);
#pragma unroll
        for (int n = 0; n < kOperands; ++n) {
          const Tf32Parts first = SplitForTf32(e == 0 ? x[n].x : x[n].y);
          const Tf32Parts second = SplitForTf32(e == 0 ? x[n].z : x[n].w);
          const uint32_t column_high[2] = {first.high, second.high};
          const uint32_t column_low[2] = {first.low, second.low};
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            MultiplyTf32(sums[n][m], high[m], column_high);
            MultiplyTf32(row_low[n][m], high[m], column_low);
            MultiplyTf32(state_low[n][m], low[m], column_high);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        Put(shared, t + n * kRowsOfOperand, rows, m, sums[n][m], state_low[n][m], row_low[n][m]);
      }
    }
  }

  /// One row or two: their low parts are columns of the operand that has the high ones.
  __device__ __forceinline__ void ReadFew(KdaShared& shared, int stage, int t, int rows) const {
    const ThreadPlace place;
    const float* const row = RowOfColumn(shared, stage, min(t + place.g / 2 % 2, rows - 1), place);
    const bool is_low = place.g >= 4;
    float sums[kTiles][4] = {};  // in lanes of low columns row_low of ReadRows
    float state_low[kTiles][4] = {};
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
        for (int m = 0; m < kTiles; ++m) {
          uint32_t high[4];
          uint32_t low[4];
          Split(s, e, m, high, low);
          MultiplyTf32(sums[m], high, column);
          MultiplyTf32(state_low[m], low, column);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
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
    const ThreadPlace place;
    if (t + place.i >= rows) return;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __fadd_rn(sums[i], __fadd_rn(state_low[i], row_low[i]));
    }
    const int channel = place.value_channel + 16 * m;
    *reinterpret_cast<float2*>(&shared.of_key[t + place.i][channel]) = make_float2(x[0], x[2]);
    *reinterpret_cast<float2*>(&shared.of_query[t + place.i][channel]) = make_float2(x[1], x[3]);
  }

  static __device__ __forceinline__ void Multiply(float (&sums)[2][4], const uint32_t (&u)[4],
                                                  const uint32_t (&keys)[2][2][2], int tokens) {
#pragma unroll
    for (int e = 0; e < 2; ++e) MultiplyTf32(sums[e], u, keys[e][tokens]);
  }

  /// Tiles (m, 0) and (m, 1).
  template <int m>
  __device__ __forceinline__ void AdvanceTiles(const KdaShared& shared, int stage) {
    const ThreadPlace place;
    uint32_t high[2][4];  // of u: by slice of 8 tokens
    uint32_t low[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = *reinterpret_cast<const float2*>(
          &shared.value[stage][4 * i + place.i][place.value_channel + 16 * m]);
      const Tf32Parts first = SplitForTf32(u.x);
      const Tf32Parts second = SplitForTf32(u.y);
      high[i / 2][i % 2 * 2] = first.high, high[i / 2][i % 2 * 2 + 1] = second.high;
      low[i / 2][i % 2 * 2] = first.low, low[i / 2][i % 2 * 2 + 1] = second.low;
    }
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      uint32_t key_high[2][2][2];  // by e, slice of tokens
      uint32_t key_low[2][2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 keys = *reinterpret_cast<const float2*>(
            &shared.decay[stage][4 * i + place.i][16 * s + 2 * place.g]);
        const Tf32Parts first = SplitForTf32(keys.x);
        const Tf32Parts second = SplitForTf32(keys.y);
        key_high[0][i / 2][i % 2] = first.high, key_high[1][i / 2][i % 2] = second.high;
        key_low[0][i / 2][i % 2] = first.low, key_low[1][i / 2][i % 2] = second.low;
      }
      float sums[2][4] = {};  // by e
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) {
        Multiply(sums, low[tokens], key_high, tokens);
        Multiply(sums, high[tokens], key_low, tokens);
      }
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) Multiply(sums, high[tokens], key_high, tokens);
      const float4 product = LoadFour(&shared.of_rows[stage].product[16 * s + 4 * place.i]);
      const float products[4] = {product.x, product.y, product.z, product.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          float& number = Number(s, c, m, v);
          number = __fmaf_rn(products[c], number, sums[c % 2][v * 2 + c / 2]);
        }
      }
    }
  }

  /// Those of a tile and slice, in the order of a left operand.
  __device__ __forceinline__ float (&Four(int n))[4] {
    return numbers_[n / 2 % kSixteens][n % 2][n / 2 / kSixteens];
  }
  static __device__ __forceinline__ int PlaceOfFour(int n) { return n * 32 * 4; }

  /// Of key channel 4 i + c of sixteen, value channel 2 g + v of sixteen.
  __device__ __forceinline__ float& Number(int s, int c, int m, int v) {
    return numbers_[s][c % 2][m][c / 2 * 2 + v];
  }

  float numbers_[kSixteens][2][kTiles][4];  // by sixteen key channels, e, m
};

}  // namespace outrider::cuda
