// The bodies of the matrix products with bf16 weights.
#include "outrider/kernels/cuda/matmul_sm90.cuh"

namespace outrider::cuda {
namespace {

constexpr WeightFormat kFormat = WeightFormat::kBf16;

// Format, warpgroups, tokens, columns of a stage, stages, blocks per multiprocessor, all segments.
using Tokens8 = MatMulBody<kFormat, 1, 8, 128, 4, 3>;
using Tokens16 = MatMulBody<kFormat, 1, 16, 128, 3, 3>;
using Tokens32 = MatMulBody<kFormat, 1, 32, 64, 5, 3>;
using Tokens64 = MatMulBody<kFormat, 1, 64, 64, 4, 3>;
using Tokens128 = MatMulBody<kFormat, 3, 128, 64, 5, 1>;
using AllSegments = MatMulBody<kFormat, 2, AllSegmentsTokens(kFormat), 64, 5, 1, true>;
// For weights with one segment.
using Tokens256 = MatMulBody<kFormat, 2, 256, 64, 4, 1>;

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
    case 128:
      return use(Tokens128());
    default:
      return use(Tokens256());
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
