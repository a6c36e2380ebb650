// Which body of the matrix products a shape runs, for the bodies of one weight format. `Bodies` has
// types Tokens8 to Tokens256, the last for weights with one segment, and AllSegments.
#pragma once

#include "outrider/kernels/cuda/matmul_sm90.cuh"

namespace outrider::cuda {

/// use(body) of the body of `shape`.
template <typename Bodies, typename Use>
auto WithMatMulBody(const MatMulShape& shape, Use use) {
  if (shape.all_segments) return use(typename Bodies::AllSegments());
  switch (shape.tokens) {
    case 8:
      return use(typename Bodies::Tokens8());
    case 16:
      return use(typename Bodies::Tokens16());
    case 32:
      return use(typename Bodies::Tokens32());
    case 64:
      return use(typename Bodies::Tokens64());
    case 128:
      return use(typename Bodies::Tokens128());
    default:
      return use(typename Bodies::Tokens256());
  }
}

template <typename Bodies>
cudaError_t LaunchMatMulShape(const MatMulShape& shape, const MatMulArguments& args, int blocks,
                              cudaStream_t stream) {
  return WithMatMulBody<Bodies>(shape, [&](auto body) {
    return LaunchMatMulBody<decltype(body)>(shape, args, blocks, stream);
  });
}

template <typename Bodies>
MatMulBodyFacts FactsOfMatMulShape(const MatMulShape& shape) {
  return WithMatMulBody<Bodies>(shape, [](auto body) {
    using Body = decltype(body);
    return MatMulBodyFacts{.warpgroups = Body::kWarpgroups,
                           .blocks_per_sm = Body::kBlocksPerSm,
                           .weight_bytes = Body::kWeightBytes};
  });
}

/// The bodies with e4m3 weights.
template <WeightFormat kFormat>
struct MatMulF8Bodies {
  // Format, warpgroups, tokens, columns of a stage, stages, blocks per multiprocessor, all
  // segments.
  using Tokens8 = MatMulBody<kFormat, 1, 8, 128, 6, 3>;
  using Tokens16 = MatMulBody<kFormat, 1, 16, 128, 5, 3>;
  using Tokens32 = MatMulBody<kFormat, 1, 32, 128, 4, 3>;
  using Tokens64 = MatMulBody<kFormat, 1, 64, 128, 4, 2>;
  using Tokens128 = MatMulBody<kFormat, 2, 128, 128, 4, 1>;
  using Tokens256 = Tokens128;  // no shape asks for more
  using AllSegments = MatMulBody<kFormat, 2, AllSegmentsTokens(kFormat), 128, 4, 1, true>;
};

}  // namespace outrider::cuda
