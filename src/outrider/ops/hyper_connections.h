// Arguments of the operations of hyper-connections (arXiv:2512.24880): a row has several residual
// streams, from which an attention or MLP reads a mixture and to which its output is added.
#pragma once

#include <cstdint>

#include "outrider/ops/tensor.h"
#include "outrider/ops/weights.h"

namespace outrider {

struct ExpertSum;  // ops/moe.h

struct HyperShape {
  int32_t streams = 0;     // S
  int32_t iterations = 0;  // of Sinkhorn's normalisation
  float eps = 0;           // of it
  float norm_eps = 0;      // of the norm over all streams of a row
};

/// What is added to the streams of rows.
struct HyperAddArgs {
  Tensor y = {};        // [rows, H], float32 with experts
  Tensor weights = {};  // [rows, (1 + S) * S] of HyperMix
  /// Instead of y, whose memory may be written: what these give.
  const ExpertSum* experts = nullptr;
};

/// What a row's mixture is made with: of the sums fn · streams [rows, S + S + S * S], parts pre,
/// post and comb, each with its scale and a base per sum; without weights [rows, S], of pre.
struct HyperMixArgs {
  Tensor streams;                // [rows, S * H], float32
  HyperAddArgs add = {};         // to the streams before; without rows: nothing
  const Weight* fn = nullptr;    // [(2 + S) * S or S, S * H], of WeightLoader::StreamMatrix
  const float* scale = nullptr;  // [3]; without weights [1]
  const float* base = nullptr;   // a number per sum
  const float* norm = nullptr;   // weight [H] of the mixture's norm, with norm_eps; null: none
  Tensor mixture;                // [rows, H], written
  Tensor weights = {};           // [rows, (1 + S) * S], written: post, then comb [S, S]
};

}  // namespace outrider
