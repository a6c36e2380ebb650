// The bodies of the matrix products with e2m1 weights whose groups have e4m3 scales.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {

template <SegmentForm kForm>
using Nvfp4Bodies = MatMulFourBitBodies<WeightFormat::kNvfp4, kForm>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kNvfp4>(const MatMulShape& shape,
                                               const MatMulArguments& args,
                                               const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<Nvfp4Bodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kNvfp4>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<Nvfp4Bodies>(shape, segments);
}

}  // namespace outrider::cuda
