// Residual streams around an attention or MLP (manifold-constrained hyper-connections,
// arXiv:2512.24880): what is read of them, and how an output is added.
#pragma once

#include "outrider/ops/hyper.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// Weights of S streams [hidden]: the sums that they are made of, their scales and bases.
struct HyperWeights {
  Weight sums;                   // fn [(2 + S) * S, S * hidden]; of the head [S, S * hidden]
  const float* scale = nullptr;  // [3]; of the head [1]
  const float* base = nullptr;   // [(2 + S) * S]; of the head [S]
};

/// The input of an attention or MLP: mixture [rows, hidden] of streams [rows, S * hidden], to which
/// `add` is added before, normalised by `norm` [hidden]. `added` [rows, (1 + S) * S]: the weights
/// by which its output is added; it may be those of `add`.
void MixStreams(const Context& context, const HyperShape& shape, const HyperWeights& weights,
                const float* norm, const HyperAddArgs& add, Tensor streams, Tensor mixture,
                Tensor added);

/// mixture [rows, hidden] of streams [rows, S * hidden], for the head.
void ContractStreams(const Context& context, const HyperShape& shape, const HyperWeights& weights,
                     Tensor streams, Tensor mixture);

}  // namespace outrider
