// CudaOps: hyper-connections of four streams.
#include "outrider/base/error.h"
#include "outrider/kernels/cuda/hyper/hyper_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"

namespace outrider::cuda {

namespace {

/// Parameters of streams [rows, 4 * hidden].
HyperRowsParams ParamsOf(const HyperShape& shape, const Tensor& streams) {
  OUTRIDER_CHECK(shape.streams == kHyperStreams && Fits(streams, DType::kF32));
  HyperRowsParams params;
  params.num_rows = static_cast<int>(streams.rows);
  params.hidden = static_cast<int>(streams.cols / kHyperStreams);
  params.streams = static_cast<float*>(streams.data);
  params.streams_stride = streams.stride;
  return params;
}

}  // namespace

void CudaOps::SetAdd(const Context& context, const HyperAddArgs& args,
                     HyperRowsParams& params) const {
  OUTRIDER_CHECK(args.y.rows == params.num_rows && args.y.cols == params.hidden);
  OUTRIDER_CHECK(args.weights.dtype == DType::kF32 && args.weights.cols == kHyperWeights &&
                 args.weights.stride == kHyperWeights);
  params.add_weights = static_cast<const float*>(args.weights.data);
  if (args.experts != nullptr && context.place().ranks == 1) {
    const CudaRouting& r = RoutingOf(*args.experts->routing);
    const ExpertRows& outputs = args.experts->outputs;
    OUTRIDER_CHECK(r.rows == params.num_rows && outputs.routed.cols == params.hidden);
    params.terms = static_cast<const float*>(outputs.routed.data);
    params.num_terms = r.choices;
    params.term_weights = r.device.weights;
    if (outputs.shared.rows > 0) params.last_term = static_cast<float*>(outputs.shared.data);
    return;
  }
  if (args.experts != nullptr) {
    SetZero(context, args.y);
    CombineExperts(context, *args.experts->weights, *args.experts->routing, args.experts->outputs,
                   args.y, {});
  }
  const Tensor y = Readable(context, args.y, args.y.dtype, stream_);
  params.y = y.data;
  params.y_dtype = y.dtype;
  params.y_stride = y.stride;
}

void CudaOps::HyperMix(const Context& context, const HyperShape& shape,
                       const HyperMixArgs& args) const {
  if (args.streams.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  HyperRowsParams params = ParamsOf(shape, args.streams);
  if (args.add.y.rows > 0) SetAdd(context, args.add, params);
  const bool mixes = args.weights.cols > 0;
  OUTRIDER_CHECK(args.fn->rows == (mixes ? kHyperSums : kHyperStreams) &&
                 args.fn->cols == args.streams.cols);
  params.part = mixes ? HyperPart::kMix : HyperPart::kContract;
  params.fn = FloatsOf(*args.fn);
  params.scale = args.scale;
  params.base = args.base;
  params.iterations = shape.iterations;
  params.epsilon = shape.eps;
  params.norm_epsilon = shape.norm_eps;
  if (mixes) {
    OUTRIDER_CHECK(args.weights.dtype == DType::kF32 && args.weights.cols == kHyperWeights &&
                   args.weights.stride == kHyperWeights);
    params.weights = static_cast<float*>(args.weights.data);
  }
  const bool norms = args.norm != nullptr;
  const ResultRows results(context, args.mixture, norms ? DType::kBF16 : DType::kF32, stream_);
  if (norms) {
    params.norm_weight = args.norm;
    params.out = results.rows().data;
    params.out_stride = results.rows().stride;
  } else {
    params.mixture = static_cast<float*>(results.rows().data);
    params.mixture_stride = results.rows().stride;
  }
  CheckCuda(HyperRows(params, stream_), "mixing of streams");
  results.Finish();
}

void CudaOps::HyperAdd(const Context& context, const HyperShape& shape, const HyperAddArgs& args,
                       Tensor streams) const {
  if (streams.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  HyperRowsParams params = ParamsOf(shape, streams);
  SetAdd(context, args, params);
  CheckCuda(HyperRows(params, stream_), "adding to streams");
}

void CudaOps::HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                        Tensor mean) const {
  if (streams.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  HyperRowsParams params = ParamsOf(shape, streams);
  const ResultRows results(context, mean, mean.dtype, stream_);
  params.mean = results.rows().data;
  params.mean_dtype = mean.dtype;
  params.mean_stride = results.rows().stride;
  CheckCuda(HyperRows(params, stream_), "mean of streams");
  results.Finish();
}

}  // namespace outrider::cuda
