// Operations of hyper-connections, over the streams X [S] of a row, whose columns they share
// evenly.
#pragma once

#include <cstdint>

#include "outrider/ops/context.h"
#include "outrider/ops/hyper_connections.h"

namespace outrider {

/// A facet of Ops (Ops::hyper).
class HyperOps {
 public:
  virtual ~HyperOps() = default;

  /// First HyperAdd of args.add, where it has rows. Then with the sums m = fn X and
  /// n = 1 / sqrt(mean of X² + norm_eps): pre = sigmoid(m n scale + base) + eps,
  /// post = 2 sigmoid(..), comb = Sinkhorn's normalisation of exp(..): a softmax of every row plus
  /// eps, then columns and, in further iterations, rows and columns divided by their sums plus eps.
  /// mixture = sum over j of pre[j] X[j], normalised; weights = post, comb. Without weights, fn has
  /// S sums, of pre alone.
  virtual void HyperMix(const Context& context, const HyperShape& shape,
                        const HyperMixArgs& args) const = 0;

  /// X[k] = post[k] y + sum over j of comb[j, k] X[j].
  virtual void HyperAdd(const Context& context, const HyperShape& shape, const HyperAddArgs& args,
                        Tensor streams) const = 0;

  /// mean [rows, H] of the streams.
  virtual void HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                         Tensor mean) const = 0;
};

}  // namespace outrider
