// The bodies of the matrix products with bf16 weights.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {
namespace {

// Format, warpgroups, rows of x, columns of a stage, stages, blocks per multiprocessor.
template <SegmentForm kForm>
struct Bf16Bodies {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  using Usual8 = MatMulBody<kFormat, 1, 8, 128, 4, 3, kForm>;
  using Deep8 = MatMulBody<kFormat, 1, 8, 128, 12, 1, kForm>;
  using Usual16 = MatMulBody<kFormat, 1, 16, 128, 3, 3, kForm>;
  using Deep16 = MatMulBody<kFormat, 1, 16, 128, 11, 1, kForm>;
  using Usual32 = MatMulBody<kFormat, 1, 32, 64, 6, 3, kForm>;
  using Deep32 = MatMulBody<kFormat, 1, 32, 128, 9, 1, kForm>;
  using Usual64 = MatMulBody<kFormat, 1, 64, 64, 4, 3, kForm>;
  using Deep64 = MatMulBody<kFormat, 1, 64, 128, 7, 1, kForm>;
  using Usual128 = MatMulBody<kFormat, 1, 128, 64, 4, 2, kForm>;
  using Pair = MatMulBody<kFormat, 2, 256, 64, 4, 1, kForm>;
  using Wide = MatMulBody<kFormat, 3, 256, 64, 4, 1, kForm>;
};
template <>
struct Bf16Bodies<SegmentForm::kAll> {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  using Deep64 = MatMulBody<kFormat, 1, 64, 128, 7, 1, SegmentForm::kAll>;
  using Usual128 = MatMulBody<kFormat, 1, 128, 64, 4, 2, SegmentForm::kAll>;
  using Wide = MatMulBody<kFormat, 3, 128, 64, 5, 1, SegmentForm::kAll>;
};

}  // namespace

template <>
cudaError_t LaunchMatMul<WeightFormat::kBf16>(const MatMulShape& shape, const MatMulArguments& args,
                                              const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<Bf16Bodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kBf16>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<Bf16Bodies>(shape, segments);
}

}  // namespace outrider::cuda
