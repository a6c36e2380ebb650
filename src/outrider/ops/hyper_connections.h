// Arguments of the operations of hyper-connections (arXiv:2512.24880): a row has several residual
// streams, from which an attention or MLP reads a mixture and to which its output is added.
#pragma once

#include <cstdint>

#include "outrider/ops/tensor.h"

namespace outrider {

struct HyperShape {
  int32_t streams = 0;     // S
  int32_t iterations = 0;  // of Sinkhorn's normalisation
  float eps = 0;           // of it
  float norm_eps = 0;      // of the norm over all streams of a row
};

/// What a row's mixture is made with: of the sums m = fn · streams [rows, S + S + S * S], parts
/// pre, post and comb, each with its scale and a base per sum.
struct HyperMixArgs {
  Tensor streams;                // [rows, S * H]
  Tensor sums;                   // [rows, (2 + S) * S]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [(2 + S) * S]
  Tensor mixture;                // [rows, H], written
  Tensor weights;                // [rows, (1 + S) * S], written: post, then comb [S, S]
};

}  // namespace outrider
