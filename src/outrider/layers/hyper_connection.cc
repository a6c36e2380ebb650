#include "outrider/layers/hyper_connection.h"

#include "outrider/ops/hyper.h"

namespace outrider {

void MixStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                const float* norm, const HyperAddArgs& add, Tensor streams, Tensor mixture,
                Tensor added) {
  context.ops.hyper()->HyperMix(context, shape,
                                {.streams = streams,
                                 .add = add,
                                 .fn = &w.sums,
                                 .scale = w.scale,
                                 .base = w.base,
                                 .norm = norm,
                                 .mixture = mixture,
                                 .weights = added});
}

void ContractStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                     Tensor streams, Tensor mixture) {
  context.ops.hyper()->HyperMix(
      context, shape,
      {.streams = streams, .fn = &w.sums, .scale = w.scale, .base = w.base, .mixture = mixture});
}

}  // namespace outrider
