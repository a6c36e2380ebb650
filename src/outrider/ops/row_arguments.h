// Arguments of operations on rows that several families share.
#pragma once

#include <cstdint>

#include "outrider/ops/tensor.h"

namespace outrider {

/// The angles of a step's rows: cos and sin [rows, R / 2], magnitude included.
struct Rotary {
  Tensor cos;
  Tensor sin;
  bool interleaved = true;  // pairs (2i, 2i + 1); false: (i, i + R / 2)
};

/// The angles of rows [first, first + count).
inline Rotary AnglesOf(const Rotary& rotary, int64_t first, int64_t count) {
  return {rotary.cos.Rows(first, count), rotary.sin.Rows(first, count), rotary.interleaved};
}

/// A norm that an operation on x ends with: out[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)).
struct NormOut {
  const float* weight = nullptr;  // null: no norm
  float eps = 0;
  Tensor out = {};

  NormOut Rows(int64_t first, int64_t count) const {
    return weight == nullptr ? NormOut{} : NormOut{weight, eps, out.Rows(first, count)};
  }
};

}  // namespace outrider
