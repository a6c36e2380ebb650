// CudaOps: mixtures of experts. The shared MLP is some experts more that every row goes to, or, if
// its weights are packed otherwise, two products of all rows.
#include <array>
#include <limits>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/moe/chosen_experts.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/peer_rows.h"

namespace outrider::cuda {

namespace {

GateUpLimits Limits(float limit, bool limits_gate) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  return {.gate = limits_gate ? limit : kNone, .silu = limits_gate ? kNone : limit, .up = limit};
}

ExpertScores ScoresOf(RouterScoring scoring) {
  switch (scoring) {
    case RouterScoring::kSoftmax:
      return ExpertScores::kSoftmax;
    case RouterScoring::kSigmoid:
      return ExpertScores::kSigmoid;
    case RouterScoring::kSqrtSoftplus:
      return ExpertScores::kRootOfSoftplus;
  }
  OUTRIDER_CHECK(false);
}

/// Logits as the router reads them: float32 rows that follow each other.
const float* DenseLogits(const Context& context, Tensor logits, cudaStream_t stream) {
  if (logits.dtype == DType::kF32 && logits.stride == logits.cols) {
    return static_cast<const float*>(logits.data);
  }
  auto* const dense = context.arena.Take<float>(logits.rows * logits.cols);
  CopyTensor(logits, Tensor(dense, logits.rows, logits.cols), stream);
  return dense;
}

/// Whether there is a shared MLP that is none of the experts.
bool IsApart(const ExpertWeights& w) { return Packed(w).shared_gate_up.n > 0; }

/// y = W x of all rows; with gate and up their SiLU and product, cut at limits.
void MultiplyAll(Tensor x, const PackedWeight& w, const GateUpLimits& limits, Tensor y,
                 cudaStream_t stream) {
  MatMulParams params;
  params.rows = static_cast<int>(x.rows);
  params.x = x.data;
  params.x_stride = x.stride;
  params.w = w;
  params.y = y.data;
  params.y_stride = y.stride;
  params.y_type = y.dtype == DType::kBF16 ? OutputType::kBf16 : OutputType::kF32;
  params.limits = limits;
  MatMul(params, stream);
}

}  // namespace

ExpertRouterParams CudaOps::PrepareRouting(const Context& context, const RouterSpec& spec,
                                           const StepInputs& inputs, int64_t rows,
                                           const ExpertWeights& w) const {
  OUTRIDER_CHECK(rows == inputs.num_rows());
  const int shared = Packed(w).shared;
  CudaRouting& r = ArenaOf(context).routing;
  r.rows = rows;
  r.top_k = static_cast<int>(spec.top_k);
  r.choices = r.top_k + shared;
  r.experts = static_cast<int>(spec.experts) + shared;
  r.tile_rows =
      ExpertTileRows(Packed(w).gate_up.format, static_cast<int>(r.rows), r.choices, r.experts);
  Scratch& arena = context.arena;
  const int64_t pairs = r.rows * r.choices;
  r.device.expert_ids = arena.Take<int32_t>(pairs);
  r.device.weights = arena.Take<float>(pairs);
  r.device.offsets = arena.Take<int32_t>(r.experts + 1);
  r.device.pairs = arena.Take<int32_t>(pairs);
  r.device.places = arena.Take<int32_t>(pairs);
  r.device.tiles =
      arena.Take<ExpertTile>(MaxExpertTiles(r.rows, r.choices, r.experts, r.tile_rows));
  r.device.num_tiles = arena.Take<int32_t>(1);
  ExpertRouterParams params;
  params.num_rows = static_cast<int>(r.rows);
  params.true_rows = Cast(inputs).true_rows();
  params.experts = static_cast<int>(spec.experts);
  params.top_k = static_cast<int>(spec.top_k);
  params.shared_experts = shared;
  params.scores = ScoresOf(spec.scoring);
  if (spec.method != RouterMethod::kGreedy) {
    params.num_groups = static_cast<int>(spec.groups);
    params.top_groups = static_cast<int>(spec.top_groups);
  }
  params.group_rank =
      spec.method == RouterMethod::kNoAuxTc ? GroupRank::kBestTwo : GroupRank::kBest;
  params.normalise = spec.normalise;
  params.scaling_factor = static_cast<float>(spec.scaling_factor);
  params.tile_rows = r.tile_rows;
  return params;
}

const Routing& CudaOps::Route(const Context& context, const RouterSpec& spec,
                              const StepInputs& inputs, int32_t first_row, const ExpertWeights& w,
                              Tensor logits, const float* bias) const {
  OUTRIDER_CHECK(first_row == 0);
  ExpertRouterParams params = PrepareRouting(context, spec, inputs, logits.rows, w);
  const Scratch::Frame frame(context.arena);
  params.logits = DenseLogits(context, logits, stream_);
  params.bias = bias;
  CheckCuda(RouteExperts(params, ArenaOf(context).routing.device, stream_), "router");
  return ArenaOf(context).routing;
}

const Routing& CudaOps::RouteByToken(const Context& context, const RouterSpec& spec,
                                     const StepInputs& inputs, int32_t first_row,
                                     const ExpertWeights& w, Tensor logits,
                                     const int32_t* table) const {
  OUTRIDER_CHECK(first_row == 0);
  ExpertRouterParams params = PrepareRouting(context, spec, inputs, logits.rows, w);
  const Scratch::Frame frame(context.arena);
  params.logits = DenseLogits(context, logits, stream_);
  params.table = table;
  params.tokens = Cast(inputs).token_ids();
  params.kept_tokens = results_->tokens();
  params.num_kept = static_cast<int>(results_->num_tokens());
  CheckCuda(RouteExperts(params, ArenaOf(context).routing.device, stream_), "router");
  return ArenaOf(context).routing;
}

void CudaOps::ReadChosen(const Routing& routing, ChosenExperts chosen) const {
  const CudaRouting& r = RoutingOf(routing);
  CheckCuda(CopyChosenExperts({.num_rows = r.rows,
                               .top_k = r.top_k,
                               .choices = r.choices,
                               .ids = r.device.expert_ids,
                               .to = chosen.ids,
                               .to_stride = chosen.stride},
                              stream_),
            "experts of tokens");
}

ExpertRows CudaOps::ExpertGateUp(const Context& context, const ExpertWeights& w,
                                 const ExpertLimits& limits, const Routing& routing,
                                 Tensor x) const {
  const CudaRouting& r = RoutingOf(routing);
  const Tensor inner = TakeRows(context, DType::kBF16, r.rows * r.choices, w.width);
  const Tensor shared_inner =
      TakeRows(context, DType::kBF16, IsApart(w) ? r.rows : 0, w.shared_width);
  const Scratch::Frame frame(context.arena);
  x = Readable(context, x, DType::kBF16, stream_);
  ExpertMatMulParams params;
  params.max_rows = static_cast<int>(r.rows);
  params.choices = r.choices;
  params.experts = r.experts;
  params.routing = r.device;
  params.tile_rows = r.tile_rows;
  params.x = x.data;
  params.x_stride = x.stride;
  if (r.tile_rows > 16) {
    params.gathered = TakeRows(context, DType::kBF16, r.rows * r.choices, x.cols).data;
  }
  params.w = Packed(w).gate_up;
  params.limits = Limits(limits.routed, limits.limits_gate);
  params.shared_limits = Limits(limits.shared, limits.limits_gate);
  params.shared = Packed(w).shared;
  params.y = inner.data;
  params.y_stride = inner.stride;
  ExpertMatMul(params, stream_);
  if (shared_inner.rows > 0) {
    MultiplyAll(x, Packed(w).shared_gate_up, params.shared_limits, shared_inner, stream_);
  }
  return {.routed = inner, .shared = shared_inner};
}

ExpertRows CudaOps::ExpertDown(const Context& context, const ExpertWeights& w,
                               const Routing& routing, const ExpertRows& inner) const {
  const CudaRouting& r = RoutingOf(routing);
  const PackedWeight& down = Packed(w).down;
  const int64_t pairs = r.rows * r.choices;
  const Tensor outputs(context.arena.Take<float>(pairs * down.n), pairs, down.n);
  const int64_t shared_rows = IsApart(w) ? r.rows : 0;
  const Tensor shared(context.arena.Take<float>(shared_rows * down.n), shared_rows, down.n);
  const Scratch::Frame frame(context.arena);
  Tensor routed_inner = inner.routed;
  Tensor shared_inner = inner.shared;
  if (context.place().ranks > 1) {
    const auto whole = [&](Tensor& mine, int64_t width) {
      const Tensor all = TakeRows(context, mine.dtype, mine.rows, width);
      return SharedTensor{std::exchange(mine, all), all, Cut::kInner};
    };
    const std::array rows = {whole(routed_inner, down.k),
                             whole(shared_inner, Packed(w).shared_down.k)};
    Gather(context, std::span(rows).first(shared_rows > 0 ? 2 : 1));
  }
  ExpertMatMulParams params;
  params.max_rows = static_cast<int>(r.rows);
  params.choices = r.choices;
  params.experts = r.experts;
  params.routing = r.device;
  params.tile_rows = r.tile_rows;
  params.x = routed_inner.data;
  params.x_stride = routed_inner.stride;
  params.w = down;
  params.y = outputs.data;
  params.y_stride = outputs.stride;
  params.y_type = OutputType::kF32;
  params.routing_settled = true;
  ExpertMatMul(params, stream_);
  if (shared_rows > 0) MultiplyAll(shared_inner, Packed(w).shared_down, {}, shared, stream_);
  return {.routed = outputs, .shared = shared};
}

void CudaOps::CombineExperts(const Context& context, const ExpertWeights& w, const Routing& routing,
                             const ExpertRows& outputs, Tensor x, const NormOut& norm) const {
  const CudaRouting& r = RoutingOf(routing);
  if (context.place().ranks > 1 && outputs.routed.cols != x.cols) {
    const Share own = OwnShare(context, Cut::kRows, x.cols);
    CombineExperts(context, w, routing, outputs, x.Columns(own.first, own.count), {});
    GatherInPlace(context, x, Cut::kRows);
    if (norm.weight != nullptr) Norm(context, x, norm.weight, norm.eps, norm.out);
    return;
  }
  OUTRIDER_CHECK(x.rows == r.rows && x.dtype == DType::kF32);
  OUTRIDER_CHECK(norm.weight == nullptr || Fits(norm.out, DType::kBF16));
  NormRowsParams params;
  params.num_rows = static_cast<int>(r.rows);
  params.hidden = static_cast<int>(x.cols);
  params.x = static_cast<float*>(x.data);
  params.x_stride = x.stride;
  params.terms = outputs.routed.data;
  params.terms_dtype = DType::kF32;
  params.num_terms = r.choices;
  params.term_weights = r.device.weights;
  if (outputs.shared.rows > 0) params.last_term = static_cast<const float*>(outputs.shared.data);
  params.norm_weight = norm.weight;
  params.epsilon = norm.eps;
  params.out = norm.out.data;
  params.out_stride = norm.out.stride;
  CheckCuda(NormRows(params, stream_), "sum of experts");
}

}  // namespace outrider::cuda
