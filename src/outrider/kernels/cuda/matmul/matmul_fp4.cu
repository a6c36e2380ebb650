// The bodies of the matrix products with e2m1 weights whose groups are scaled by powers of two.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {

template <SegmentForm kForm>
using Fp4Bodies = MatMulFourBitBodies<WeightFormat::kFp4, kForm>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kFp4>(const MatMulShape& shape, const MatMulArguments& args,
                                             const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<Fp4Bodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kFp4>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<Fp4Bodies>(shape, segments);
}

}  // namespace outrider::cuda
