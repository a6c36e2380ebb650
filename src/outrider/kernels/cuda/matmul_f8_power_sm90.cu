// The bodies of the matrix products with e4m3 weights whose scales are powers of two.
#include "outrider/kernels/cuda/matmul_bodies_sm90.cuh"

namespace outrider::cuda {

using F8Bodies = MatMulF8Bodies<WeightFormat::kF8PowerOfTwo>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kF8PowerOfTwo>(const MatMulShape& shape,
                                                      const MatMulArguments& args, int blocks,
                                                      cudaStream_t stream) {
  return LaunchMatMulShape<F8Bodies>(shape, args, blocks, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kF8PowerOfTwo>(const MatMulShape& shape) {
  return FactsOfMatMulShape<F8Bodies>(shape);
}

}  // namespace outrider::cuda
