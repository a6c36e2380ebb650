// CudaOps: Kimi Delta Attention.
#include "outrider/base/error.h"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "outrider/kernels/cuda/kda/kda_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/kernel_arguments.h"

namespace outrider::cuda {

static_assert(kHopperHeadDim == kKdaDim && kHopperConv == kKdaConv);

namespace {

float* Floats(const Tensor& x) { return static_cast<float*>(x.data); }

/// Rows that kernels read and write where they are.
Tensor Checked(const Tensor& x, int64_t rows, int64_t cols) {
  OUTRIDER_CHECK(Fits(x, DType::kF32) && x.rows == rows && x.cols == cols);
  return x;
}

}  // namespace

void CudaOps::DeltaAttention(const Context& context, const DeltaShape& shape,
                             const StepInputs& inputs, const DeltaArgs& args) const {
  const int64_t rows = args.q.rows;
  if (rows == 0) return;
  const KdaStep& step = Cast(inputs).states();
  OUTRIDER_CHECK(shape.head_dim == kKdaDim && shape.conv == kKdaConv);
  OUTRIDER_CHECK(step.num_requests > 0 && step.num_rows == rows);
  const int64_t width = int64_t{shape.heads} * kKdaDim;
  const Scratch::Frame frame(context.arena);
  const Tensor q = Checked(args.q, rows, width);
  const Tensor k = Checked(args.k, rows, width);
  const Tensor v = Checked(args.v, rows, width);
  OUTRIDER_CHECK(k.stride == q.stride && v.stride == q.stride);
  const Tensor decay = Checked(args.decay, rows, width);
  const Tensor write = Readable(context, args.write, DType::kF32, stream_);
  OUTRIDER_CHECK(write.rows == rows && write.cols == shape.heads);
  const ResultRows results(context, args.out, DType::kF32, stream_);
  OUTRIDER_CHECK(results.rows().rows == rows && results.rows().cols == width);

  KdaRowsParams first;
  first.step = step;
  first.memory = {
      .data = args.state.data, .page_bytes = args.state.page_bytes, .first_head = shape.first_head};
  first.heads = shape.heads;
  first.q = Floats(q);
  first.k = Floats(k);
  first.v = Floats(v);
  first.stride = q.stride;
  first.q_taps = args.q_taps;
  first.k_taps = args.k_taps;
  first.v_taps = args.v_taps;
  first.decay = Floats(decay);
  first.decay_stride = decay.stride;
  first.decay_log = args.decay_log;
  first.decay_bias = args.decay_bias;
  first.bounded = shape.bounded;
  first.decay_bound = shape.decay_bound;
  first.q_out = context.arena.Take<float>(rows * width);
  first.k_out = context.arena.Take<float>(rows * width);
  first.v_out = context.arena.Take<float>(rows * width);
  CheckCuda(KdaRows(first, stream_), "rows of linear attention");

  KdaAttentionParams pass;
  pass.rows = first;
  pass.write = Floats(write);
  pass.write_stride = write.stride;
  pass.out = Floats(results.rows());
  pass.out_stride = results.rows().stride;
  pass.blocks = context.arena.Take<KdaTokenBlock>(rows / kStateBlock * shape.heads);
  CheckCuda(KdaAttention(pass, stream_), "linear attention");
  results.Finish();
}

void CudaOps::NormGate(const Context& context, const NormGateArgs& args) const {
  const int64_t rows = args.x.rows;
  if (rows == 0) return;
  const int64_t width = int64_t{args.heads} * kKdaDim;
  const Scratch::Frame frame(context.arena);
  const Tensor x = Checked(args.x, rows, width);
  const Tensor gates = Checked(args.gates, rows, width);
  const ResultRows results(context, args.y, args.y.dtype, stream_);
  OUTRIDER_CHECK(results.rows().rows == rows && results.rows().cols == width);
  KdaNormGateParams params;
  params.num_rows = Int(rows);
  params.heads = args.heads;
  params.x = Floats(x);
  params.x_stride = x.stride;
  params.norm = args.norm;
  params.epsilon = args.norm_eps;
  params.gates = Floats(gates);
  params.gates_stride = gates.stride;
  params.y = results.rows().data;
  params.y_dtype = results.rows().dtype;
  params.y_stride = results.rows().stride;
  CheckCuda(KdaNormGate(params, stream_), "norm and gates of linear attention");
  results.Finish();
}

void CudaOps::GateHeads(const Context& context, Tensor gates, Tensor x) const {
  if (x.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor read = Readable(context, gates, DType::kF32, stream_);
  const Tensor heads = Readable(context, x, DType::kBF16, stream_);
  OUTRIDER_CHECK(read.rows == x.rows && x.cols % read.cols == 0);
  GateHeadsParams params;
  params.num_rows = Int(x.rows);
  params.heads = Int(read.cols);
  params.width = Int(x.cols / read.cols);
  params.gates = Floats(read);
  params.gates_stride = read.stride;
  params.x = heads.data;
  params.x_stride = heads.stride;
  CheckCuda(outrider::cuda::GateHeads(params, stream_), "gates of heads");
  if (heads.data != x.data) CopyTensor(heads, x, stream_);
}

}  // namespace outrider::cuda
