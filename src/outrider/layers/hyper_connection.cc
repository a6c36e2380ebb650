#include "outrider/layers/hyper_connection.h"

#include <array>

#include "outrider/ops/hyper.h"

namespace outrider {

Tensor MixStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                  Tensor streams, Tensor mixture) {
  const Tensor weights = context.Rows(streams.rows, int64_t{1 + shape.streams} * shape.streams);
  const Scratch::Frame frame(context.arena);
  const Tensor sums = context.Rows(streams.rows, w.sums.rows);
  context.ops.Multiply(context,
                       std::array{Product{.x = streams, .w = &w.sums, .y = sums, .float32 = true}});
  context.ops.hyper()->HyperMix(context, shape,
                                {.streams = streams,
                                 .sums = sums,
                                 .scale = w.scale,
                                 .base = w.base,
                                 .mixture = mixture,
                                 .weights = weights});
  return weights;
}

void ContractStreams(const Context& context, const HyperShape& shape, const HyperWeights& w,
                     Tensor streams, Tensor mixture) {
  const Scratch::Frame frame(context.arena);
  const Tensor sums = context.Rows(streams.rows, w.sums.rows);
  context.ops.Multiply(context,
                       std::array{Product{.x = streams, .w = &w.sums, .y = sums, .float32 = true}});
  context.ops.hyper()->HyperContract(context, shape,
                                     {.streams = streams,
                                      .sums = sums,
                                      .scale = w.scale,
                                      .base = w.base,
                                      .mixture = mixture,
                                      .weights = {}});
}

}  // namespace outrider
