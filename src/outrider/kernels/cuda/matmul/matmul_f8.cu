// The bodies of the matrix products with e4m3 weights.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {

template <SegmentForm kForm>
using F8Bodies = MatMulF8Bodies<WeightFormat::kF8, kForm>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kF8>(const MatMulShape& shape, const MatMulArguments& args,
                                            const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<F8Bodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kF8>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<F8Bodies>(shape, segments);
}

}  // namespace outrider::cuda
