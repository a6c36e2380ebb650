// A row of logits as it lies in memory, and the largest of it.
#pragma once

#include "outrider/kernels/cuda/sampling/draw_row.cuh"

namespace outrider::cuda {

/// Which row of logits a cluster draws from.
struct DrawnRow {
  int row;
  int request;
  int index;  // among its request's rows: the number of drafts before it
  int64_t position;
  int first_token;  // whose logit is the first
  const float* logits;
  const uint32_t* mask;  // or null
};

/// Stands for the winner in a row of logits that overflow: the key of no number.
inline constexpr uint64_t kOverflownKey = ~uint64_t{0};

/// NaN and +infinity.
__device__ __forceinline__ bool Overflows(float logit) { return !(logit < INFINITY); }

/// The key of the largest logit in shared memory; kOverflownKey if a thread has seen some overflow.
__device__ __forceinline__ uint64_t LargestKey(DrawRow& row, bool overflown = false) {
  float best = -INFINITY;
  int at = -1;
  row.ForTokens([&](int, int token, float value) {
    if (value > best) {  // the lowest token among equals, as they come in order; never NaN
      best = value;
      at = token;
    }
  });
  return row.Max(overflown ? kOverflownKey : at < 0 ? 0 : TokenKey(best, at));
}

/// Tokens i .. i + 3 of a block's slice of `count`; -infinity where there are none and where the
/// mask forbids them. Sets `overflown` if one overflows, forbidden or not.
__device__ __forceinline__ float4 LoadFour(const float* from, const uint32_t* mask, int i,
                                           int count, bool& overflown) {
  float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  if (i + 4 <= count) {
    four = *reinterpret_cast<const float4*>(from + i);
  } else {
    four.x = from[i];
    if (i + 1 < count) four.y = from[i + 1];
    if (i + 2 < count) four.z = from[i + 2];
  }
  overflown |= Overflows(four.x) || Overflows(four.y) || Overflows(four.z) || Overflows(four.w);
  if (mask != nullptr) {
    const uint32_t bits = mask[i / 32] >> i % 32;
    if ((bits & 1) == 0) four.x = -INFINITY;
    if ((bits & 2) == 0) four.y = -INFINITY;
    if ((bits & 4) == 0) four.z = -INFINITY;
    if ((bits & 8) == 0) four.w = -INFINITY;
  }
  return four;
}

/// The key of the largest logit of the row in memory, less what a mask forbids; kOverflownKey where
/// one overflows.
__device__ __forceinline__ uint64_t LargestInMemory(const DrawnRow& drawn, bool masked,
                                                    DrawRow& row) {
  const float* from = drawn.logits + row.first();
  const uint32_t* mask = masked ? drawn.mask + row.first() / 32 : nullptr;
  const int count = row.count();
  float best = -INFINITY;
  int at = -1;
  bool overflown = false;
  auto look = [&](int i, float value) {
    if (value > best) {
      best = value;
      at = i;
    }
  };
#pragma unroll 5
  for (int i = static_cast<int>(threadIdx.x) * 4; i < count; i += kDrawThreads * 4) {
    const float4 four = LoadFour(from, mask, i, count, overflown);
    look(i, four.x);
    look(i + 1, four.y);
    look(i + 2, four.z);
    look(i + 3, four.w);
  }
  const int token = drawn.first_token + row.first() + at;
  return row.Max(overflown ? kOverflownKey : at < 0 ? 0 : TokenKey(best, token));
}

}  // namespace outrider::cuda
