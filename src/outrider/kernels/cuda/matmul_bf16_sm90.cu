// The bodies of the matrix products with bf16 weights.
#include "outrider/kernels/cuda/matmul_sm90.cuh"

namespace outrider::cuda {
namespace {

constexpr WeightFormat kFormat = WeightFormat::kBf16;

// Format, warpgroups, tokens, columns of a stage, stages, blocks per multiprocessor, all segments.
using Tokens8 = MatMulBody<kFormat, 1, 8, 128, 4, 3, false>;
using Tokens16 = MatMulBody<kFormat, 1, 16, 128, 3, 3, false>;
using Tokens32 = MatMulBody<kFormat, 1, 32, 128, 4, 2, false>;
using Tokens64 = MatMulBody<kFormat, 1, 64, 128, 3, 2, false>;
using Tokens128 = MatMulBody<kFormat, 1, 128, 64, 4, 2, false>;
using Wide128 = MatMulBody<kFormat, 2, 128, 64, 6, 1, true>;
// For weights with one segment.
using Wide256 = MatMulBody<kFormat, 2, 256, 64, 4, 1, false>;

/// use(body) of the body of `shape`.
template <typename Use>
auto WithBody(const MatMulShape& shape, Use use) {
  if (shape.warpgroups == 2) return shape.tokens == 256 ? use(Wide256()) : use(Wide128());
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
  return WithBody(
      shape, [&](auto body) { return LaunchMatMulBody<decltype(body)>(args, blocks, stream); });
}

template <>
int MatMulBlocksPerSm<kFormat>(const MatMulShape& shape) {
  return WithBody(shape, [](auto body) { return decltype(body)::kBlocksPerSm; });
}

}  // namespace outrider::cuda
