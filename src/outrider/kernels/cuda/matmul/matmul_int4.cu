// The bodies of the matrix products with integers of 4 bits as weights.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {

template <SegmentForm kForm>
using Int4Bodies = MatMulFourBitBodies<WeightFormat::kInt4, kForm>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kInt4>(const MatMulShape& shape, const MatMulArguments& args,
                                              const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<Int4Bodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kInt4>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<Int4Bodies>(shape, segments);
}

}  // namespace outrider::cuda
