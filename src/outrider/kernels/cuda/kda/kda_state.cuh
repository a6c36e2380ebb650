// The state of one head in the registers of a block of 128 threads, 128 numbers in each. Rows are
// multiplied with it on CUDA cores, in float32. What a block of tokens adds to it is a product on
// tensor cores, of operands in two parts of TF32 (tf32_parts.h), with sums in float32.
#pragma once

#include "outrider/kernels/cuda/kda/kda_instructions.cuh"
#include "outrider/kernels/cuda/kda/kda_shared.cuh"
#include "outrider/kernels/cuda/kda/tf32_parts.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

/// A warp has all key channels of 32 value channels. With g = lane / 4 and i = lane % 4 a lane has
/// of each 16 key channels 4 i + c, c = 0..3, of value channels 4 g + v, v = 0..3. Tensor cores
/// take 16 value channels as rows and 8 key channels as columns: sum (m, e) has in rows g and g + 8
/// v = 2 m and 2 m + 1, in columns 2 i and 2 i + 1 c = e and e + 2. So a lane's numbers are those
/// that it has of the sums.
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
    from += ThreadPlace().Place();
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
    to += ThreadPlace().Place();
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float(&x)[4] = numbers_[s][c];
        StoreFour(to + (16 * s + c) * kKdaDim, make_float4(x[0], x[1], x[2], x[3]));
      }
    }
  }

  /// The products of rows [first, rows) of a block of tokens with the state, kTogether at a time.
  template <int kTogether>
  __device__ __forceinline__ void Read(KdaShared& shared, int stage, int first, int rows) const {
    int t = first;
#pragma unroll 1
    for (; t + kTogether <= rows; t += kTogether) ReadRows<kTogether>(shared, stage, t);
    if (kTogether > 1 && t < rows) ReadRows<1>(shared, stage, t);
  }

  /// The state of the next block of tokens. What the block adds is summed from zero, products with
  /// low parts first. Rows m of a lane's sums kTogether at a time.
  template <int kTogether>
  __device__ __forceinline__ void Advance(const KdaShared& shared, int stage) {
    AdvanceRows<0, kTogether>(shared, stage);
    if constexpr (kTogether == 1) AdvanceRows<1, 1>(shared, stage);
  }

 private:
  static constexpr int kSixteens = kKdaDim / 16;

  struct ThreadPlace {
    /// In memory, of its first number.
    __device__ __forceinline__ int Place() const { return 4 * i * kKdaDim + value_channel; }

    int thread = static_cast<int>(FreshThread());
    int g = thread % 32 / 4;
    int i = thread % 4;
    int value_channel = thread / 32 * 32 + 4 * g;
  };

  template <int kCount>
  static __device__ __forceinline__ void Multiply(float (&sums)[kCount][2][4],
                                                  const uint32_t (&u)[kCount][2][4],
                                                  const uint32_t (&keys)[2][2][2], int tokens) {
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
#pragma unroll
      for (int e = 0; e < 2; ++e) MultiplyTf32(sums[m][e], u[m][tokens], keys[e][tokens]);
    }
  }

  /// Of m from kFirst on.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void AdvanceRows(const KdaShared& shared, int stage) {
    const ThreadPlace place;
    uint32_t high[kCount][2][4];  // of u: by m, slice of 8 tokens
    uint32_t low[kCount][2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const u = &shared.value[stage][4 * i + place.i][place.value_channel];
#pragma unroll
      for (int v = 0; v < 2 * kCount; ++v) {
        const Tf32Parts parts = SplitForTf32(u[2 * kFirst + v]);
        high[v / 2][i / 2][i % 2 * 2 + v % 2] = parts.high;
        low[v / 2][i / 2][i % 2 * 2 + v % 2] = parts.low;
      }
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
      float sums[kCount][2][4] = {};  // by m, e
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) {
        Multiply(sums, low, key_high, tokens);
        Multiply(sums, high, key_low, tokens);
      }
#pragma unroll
      for (int tokens = 0; tokens < 2; ++tokens) Multiply(sums, high, key_high, tokens);
      const float4 product = LoadFour(&shared.of_rows[stage].product[16 * s + 4 * place.i]);
      const float products[4] = {product.x, product.y, product.z, product.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int v = 0; v < 2 * kCount; ++v) {
          float& number = numbers_[s][c][2 * kFirst + v];
          number = __fmaf_rn(products[c], number, sums[v / 2][c % 2][v % 2 * 2 + c / 2]);
        }
      }
    }
  }

  /// Rows from t on: chains over a lane's 32 key channels, then a tree over four lanes.
  template <int kRows>
  __device__ __forceinline__ void ReadRows(KdaShared& shared, int stage, int t) const {
    const ThreadPlace place;
    const float* const k = &shared.k[stage][t][4 * place.i];
    const float* const q = &shared.q[stage][t][4 * place.i];
    float x[kRows][8] = {};  // of four value channels: with the key, then with the query
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        AddProducts(LoadFour(k + row * kKdaDim + 16 * s), s, x[row]);
        AddProducts(LoadFour(q + row * kKdaDim + 16 * s), s, x[row] + 4);
      }
    }
    KdaTile& to = place.i >= 2 ? shared.of_query : shared.of_key;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      ScatterSums<8, 2, 2>(x[row], place.i);
      *reinterpret_cast<float2*>(&to[t + row][place.value_channel + place.i % 2 * 2]) =
          make_float2(x[row][0], x[row][1]);
    }
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
