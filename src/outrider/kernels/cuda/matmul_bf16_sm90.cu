// The bodies of the matrix products with bf16 weights.
#include "outrider/kernels/cuda/matmul_bodies_sm90.cuh"

namespace outrider::cuda {
namespace {

struct Bf16Bodies {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  // Format, warpgroups, tokens, columns of a stage, stages, blocks per multiprocessor, all
  // segments.
  using Tokens8 = MatMulBody<kFormat, 1, 8, 128, 4, 3>;
  using Tokens16 = MatMulBody<kFormat, 1, 16, 128, 3, 3>;
  using Tokens32 = MatMulBody<kFormat, 1, 32, 64, 5, 3>;
  using Tokens64 = MatMulBody<kFormat, 1, 64, 64, 4, 3>;
  using Tokens128 = MatMulBody<kFormat, 3, 128, 64, 5, 1>;
  using Tokens256 = MatMulBody<kFormat, 2, 256, 64, 4, 1>;
  using AllSegments = MatMulBody<kFormat, 2, AllSegmentsTokens(kFormat), 64, 5, 1, true>;
};

}  // namespace

template <>
cudaError_t LaunchMatMul<WeightFormat::kBf16>(const MatMulShape& shape, const MatMulArguments& args,
                                              int blocks, cudaStream_t stream) {
  return LaunchMatMulShape<Bf16Bodies>(shape, args, blocks, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kBf16>(const MatMulShape& shape) {
  return FactsOfMatMulShape<Bf16Bodies>(shape);
}

}  // namespace outrider::cuda
