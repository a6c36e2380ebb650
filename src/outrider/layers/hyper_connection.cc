#include "outrider/layers/hyper_connection.h"

#include "outrider/ops/hyper.h"

namespace outrider {

Tensor MixStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                  const float* norm, const HyperAddArgs& add, Tensor streams, Tensor mixture) {
  const Tensor weights = context.Rows(streams.rows, int64_t{1 + shape.streams} * shape.streams);
  context.ops.hyper()->HyperMix(context, shape,
                                {.streams = streams,
                                 .add = add,
                                 .fn = &w.sums,
                                 .scale = w.scale,
                                 .base = w.base,
                                 .norm = norm,
                                 .mixture = mixture,
                                 .weights = weights});
  return weights;
}

void ContractStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                     Tensor streams, Tensor mixture) {
  context.ops.hyper()->HyperMix(
      context, shape,
      {.streams = streams, .fn = &w.sums, .scale = w.scale, .base = w.base, .mixture = mixture});
}

}  // namespace outrider
