// Which body of the matrix products a shape runs, for the bodies of one weight format. `Bodies` has
// a type for each form and its rows of x.
#pragma once

#include "outrider/kernels/cuda/matmul/matmul_kernel.cuh"

namespace outrider::cuda {

/// use(body) of the body of `shape`, for a weight of one segment or of several.
template <template <SegmentForm> typename Bodies, typename Use>
auto WithMatMulBody(const MatMulShape& shape, bool segments, Use use) {
  constexpr auto kOne = SegmentForm::kOne, kCluster = SegmentForm::kCluster;
  if (segments && shape.all_segments) {
    using All = Bodies<SegmentForm::kAll>;
    if constexpr (All::kFormat == WeightFormat::kBf16) {
      if (shape.variant == MatMulVariant::kUsual) return use(typename All::Usual128());
      if (shape.variant == MatMulVariant::kDeep) return use(typename All::Deep64());
    }
    return use(typename All::Wide());
  }
  const auto choose = [&](auto bodies) {
    using Of = decltype(bodies);
    if (shape.variant == MatMulVariant::kWide) return use(typename Of::Wide());
    if (shape.variant == MatMulVariant::kPair) {
      if constexpr (IsE2m1(Of::kFormat)) {
        if (shape.tokens == 16) return use(typename Of::Pair16());
      }
      return use(typename Of::Pair());
    }
    const bool deep = shape.variant == MatMulVariant::kDeep;
    switch (shape.tokens) {
      case 8:
        return deep ? use(typename Of::Deep8()) : use(typename Of::Usual8());
      case 16:
        return deep ? use(typename Of::Deep16()) : use(typename Of::Usual16());
      case 32:
        return deep ? use(typename Of::Deep32()) : use(typename Of::Usual32());
      case 64:
        return deep ? use(typename Of::Deep64()) : use(typename Of::Usual64());
      default:
        return use(typename Of::Usual128());
    }
  };
  return segments ? choose(Bodies<kCluster>()) : choose(Bodies<kOne>());
}

template <template <SegmentForm> typename Bodies>
cudaError_t LaunchMatMulShape(const MatMulShape& shape, const MatMulArguments& args,
                              const MatMulLaunch& launch, cudaStream_t stream) {
  const bool segments = args.segment_units < args.units;
  return WithMatMulBody<Bodies>(shape, segments, [&](auto body) {
    return LaunchMatMulBody<decltype(body)>(args, launch, stream);
  });
}

template <template <SegmentForm> typename Bodies>
MatMulBodyFacts FactsOfMatMulShape(const MatMulShape& shape, bool segments) {
  return WithMatMulBody<Bodies>(shape, segments, [](auto body) {
    using Body = decltype(body);
    return MatMulBodyFacts{.warpgroups = Body::kWarpgroups,
                           .blocks_per_sm = Body::kBlocksPerSm,
                           .weight_bytes = Body::kWeightBytes,
                           .box_tokens = Body::kBoxTokens};
  });
}

/// The bodies with e4m3 weights. Format, warpgroups, rows of x, columns of a stage, stages, blocks
/// per multiprocessor.
template <WeightFormat kFormat_, SegmentForm kForm>
struct MatMulF8Bodies {
  static constexpr WeightFormat kFormat = kFormat_;
  using Usual8 = MatMulBody<kFormat, 1, 8, 128, 5, 4, kForm>;
  using Deep8 = MatMulBody<kFormat, 1, 8, 128, 7, 3, kForm>;
  using Usual16 = MatMulBody<kFormat, 1, 16, 128, 4, 4, kForm>;
  using Deep16 = MatMulBody<kFormat, 1, 16, 128, 6, 3, kForm>;
  using Usual32 = MatMulBody<kFormat, 1, 32, 128, 4, 3, kForm>;
  using Deep32 = Usual32;
  using Usual64 = MatMulBody<kFormat, 1, 64, 128, 3, 3, kForm>;
  using Deep64 = Usual64;
  using Wide = MatMulBody<kFormat, 2, 128, 128, 4, 1, kForm>;
  using Usual128 = Wide;
  using Pair = Wide;  // is refused
};

/// Bodies with 4-bit weights, whose stages have 256 columns.
template <WeightFormat kFormat_, SegmentForm kForm>
struct MatMulFourBitBodies {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr bool kHasPairs = kForm == SegmentForm::kOne && IsE2m1(kFormat_);
  using Usual8 = MatMulBody<kFormat, 1, 8, 256, 4, 4, kForm>;
  using Deep8 = Usual8;
  using Usual16 = MatMulBody<kFormat, 1, 16, 256, 3, 4, kForm>;
  using Deep16 = Usual16;
  static constexpr int kStages32 = kFormat == WeightFormat::kFp4 ? 3 : 2;  // that have room
  using Usual32 = MatMulBody<kFormat, 1, 32, 256, kStages32, 3, kForm>;
  using Deep32 = Usual32;
  using Usual64 = MatMulBody<kFormat, 1, 64, 256, 2, 2, kForm>;
  using Deep64 = Usual64;
  using Wide = MatMulBody<kFormat, 2, 128, 256, 2, 1, kForm>;
  using Usual128 = Wide;
  // With integers and several segments they are refused.
  using Pair16 = std::conditional_t<kHasPairs, MatMulBody<kFormat, 2, 16, 256, 4, 2, kForm>, Wide>;
  using Pair = std::conditional_t<kHasPairs, MatMulBody<kFormat, 2, 32, 256, 3, 2, kForm>, Wide>;
};

}  // namespace outrider::cuda
