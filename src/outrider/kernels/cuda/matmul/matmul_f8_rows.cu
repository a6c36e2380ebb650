// The bodies of the matrix products with e4m3 weights that have a scale per row.
#include "outrider/kernels/cuda/matmul/matmul_bodies.cuh"

namespace outrider::cuda {

template <SegmentForm kForm>
using F8RowsBodies = MatMulF8Bodies<WeightFormat::kF8Rows, kForm>;

template <>
cudaError_t LaunchMatMul<WeightFormat::kF8Rows>(const MatMulShape& shape,
                                                const MatMulArguments& args,
                                                const MatMulLaunch& launch, cudaStream_t stream) {
  return LaunchMatMulShape<F8RowsBodies>(shape, args, launch, stream);
}

template <>
MatMulBodyFacts FactsOf<WeightFormat::kF8Rows>(const MatMulShape& shape, bool segments) {
  return FactsOfMatMulShape<F8RowsBodies>(shape, segments);
}

}  // namespace outrider::cuda
