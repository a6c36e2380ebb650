// The bodies of the matrix products with e4m3 weights.
#include "outrider/kernels/cuda/matmul_sm90.cuh"

namespace outrider::cuda {
namespace {

constexpr WeightFormat kFormat = WeightFormat::kF8;

// Format, warpgroups, tokens, columns of a stage, stages, blocks per multiprocessor, all segments.
using Tokens8 = MatMulBody<kFormat, 1, 8, 128, 6, 3>;
using Tokens16 = MatMulBody<kFormat, 1, 16, 128, 5, 3>;
using Tokens32 = MatMulBody<kFormat, 1, 32, 128, 4, 3>;
using Tokens64 = MatMulBody<kFormat, 1, 64, 128, 4, 2>;
using Tokens128 = MatMulBody<kFormat, 2, 128, 128, 4, 1>;
using AllSegments = MatMulBody<kFormat, 2, AllSegmentsTokens(kFormat), 128, 4, 1, true>;

/// use(body) of the body of `shape`.
template <typename Use>
auto WithBody(const MatMulShape& shape, Use use) {
  if (shape.all_segments) return use(AllSegments());
  switch (shape.tokens) {
    case 8:
      return use(Tokens8());
    case 16:
      return use(Tokens16());
    case 32:
      return use(Tokens32());
    case 64:
      return use(Tokens64());
    default:
      return use(Tokens128());
  }
}

}  // namespace

template <>
cudaError_t LaunchMatMul<kFormat>(const MatMulShape& shape, const MatMulArguments& args, int blocks,
                                  cudaStream_t stream) {
  return WithBody(shape, [&](auto body) {
    return LaunchMatMulBody<decltype(body)>(shape, args, blocks, stream);
  });
}

template <>
MatMulBodyFacts FactsOf<kFormat>(const MatMulShape& shape) {
  return WithBody(shape, [](auto body) {
    using Body = decltype(body);
    return MatMulBodyFacts{.warpgroups = Body::kWarpgroups,
                           .blocks_per_sm = Body::kBlocksPerSm,
                           .weight_bytes = Body::kWeightBytes};
  });
}

}  // namespace outrider::cuda
