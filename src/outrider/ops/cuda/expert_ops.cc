// CudaOps: mixtures of experts. The shared MLP is some experts more that every row goes to, or, if
// its weights are packed otherwise, two products of all rows.
#include <array>
#include <limits>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/moe/chosen_experts.h"
#include "outrider/kernels/cuda/moe/cut_tiles.h"
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

// Parts in which products of experts run. More hide more of what travels and cost more at the end
// of each, where some multiprocessors have nothing to do.
constexpr int64_t kInnerChunks = 4;

/// The chunks of places in which inner rows travel beside the products that make and take them.
/// They have their columns at their place then, so these have to begin where a product can write.
RowChunks ChunksOfInner(const Context& context, const ExpertWeights& w, const CudaRouting& r) {
  const RankPlace place = context.place();
  const int64_t width = Packed(w).down.k;
  for (int32_t rank = 0; rank < place.ranks; ++rank) {
    if (ShareOf(Cut::kInner, width, {rank, place.ranks}).first % 8 != 0) return {};
  }
  const Tensor all(nullptr, DType::kBF16, r.rows * r.choices, width, width);
  return ChunksOf(context, {{}, all, Cut::kInner}, /*unit=*/1, kInnerChunks);
}

/// A routing's tiles in parts, in the arena (CutTiles).
CutTilesParams TakeParts(const Context& context, const CudaRouting& r) {
  CutTilesParams cut;
  cut.routing = r.device;
  cut.room = MaxExpertTiles(r.rows, r.choices, r.experts, r.tile_rows);
  cut.tiles = context.arena.Take<ExpertTile>(kMostTileParts * cut.room);
  cut.counts = context.arena.Take<int32_t>(kMostTileParts);
  return cut;
}

/// The products of a part.
ExpertMatMulParams PartOf(const ExpertMatMulParams& all, const CutTilesParams& cut, int part) {
  ExpertMatMulParams params = all;
  params.routing.tiles = cut.tiles + part * cut.room;
  params.routing.num_tiles = cut.counts + part;
  // A part may have no tile. A launch whose blocks all end without waiting would let the next one
  // start before those before it have ended.
  params.routing_settled = false;
  params.is_gathered = part > 0;
  return params;
}

/// x[r] += the outputs of row r's experts, of the rows from `first` on; then the norm of x.
void AddExperts(const CudaRouting& r, const ExpertRows& outputs, int64_t first, Tensor x,
                const NormOut& norm, cudaStream_t stream) {
  OUTRIDER_CHECK(first + x.rows <= r.rows && x.dtype == DType::kF32);
  OUTRIDER_CHECK(norm.weight == nullptr || Fits(norm.out, DType::kBF16));
  NormRowsParams params;
  params.num_rows = static_cast<int>(x.rows);
  params.hidden = static_cast<int>(x.cols);
  params.x = static_cast<float*>(x.data);
  params.x_stride = x.stride;
  params.terms = outputs.routed.Rows(first * r.choices, x.rows * r.choices).data;
  params.terms_dtype = DType::kF32;
  params.num_terms = r.choices;
  params.term_weights = r.device.weights + first * r.choices;
  if (outputs.shared.rows > 0) {
    params.last_term = static_cast<const float*>(outputs.shared.Rows(first, x.rows).data);
  }
  params.norm_weight = norm.weight;
  params.epsilon = norm.eps;
  params.out = norm.out.data;
  params.out_stride = norm.out.stride;
  CheckCuda(NormRows(params, stream), "sum of experts");
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
  const RowChunks chunks = ChunksOfInner(context, w, r);
  const bool whole = chunks.count() > 1;  // with room for the columns of other ranks
  const int64_t width = whole ? Packed(w).down.k : w.width;
  const Tensor inner = TakeRows(context, DType::kBF16, r.rows * r.choices, width);
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
  const Share own = whole ? OwnShare(context, Cut::kInner, width) : Share{0, width};
  params.y = inner.Columns(own.first, own.count).data;
  params.y_stride = inner.stride;
  if (whole) {
    CutTilesParams cut = TakeParts(context, r);
    cut.parts = chunks.count();
    for (int i = 0; i < cut.parts; ++i) cut.ends[i] = chunks.end(i);
    CheckCuda(CutTiles(cut, stream_), "parts of experts' rows");
    for (int i = 0; i < cut.parts; ++i) {
      ExpertMatMul(PartOf(params, cut, i), stream_);
      if (i + 1 < cut.parts) ChunkedGathersOf(context).Give(i);
    }
  } else {
    ExpertMatMul(params, stream_);
  }
  if (shared_inner.rows > 0) {
    MultiplyAll(x, Packed(w).shared_gate_up, params.shared_limits, shared_inner, stream_);
  }
  if (whole) ChunkedGathersOf(context).Give(chunks.count() - 1);
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
  const RowChunks chunks = ChunksOfInner(context, w, r);
  const bool in_chunks = chunks.count() > 1;
  if (context.place().ranks > 1) {
    const auto whole = [&](Tensor& mine, int64_t width) {
      const Tensor all = TakeRows(context, mine.dtype, mine.rows, width);
      return SharedTensor{std::exchange(mine, all), all, Cut::kInner};
    };
    const auto in_place = [&](const Tensor& all) {
      const Share own = OwnShare(context, Cut::kInner, all.cols);
      return SharedTensor{all.Columns(own.first, own.count), all, Cut::kInner};
    };
    const std::array rows = {in_chunks ? in_place(routed_inner) : whole(routed_inner, down.k),
                             whole(shared_inner, Packed(w).shared_down.k)};
    const auto used = std::span(rows).first(shared_rows > 0 ? 2 : 1);
    if (in_chunks) {
      BeginGather(context, used, chunks);
    } else {
      Gather(context, used);
    }
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
  if (in_chunks) {
    // All but the last chunk have mostly come while the last one was made.
    CutTilesParams cut = TakeParts(context, r);
    cut.parts = 2;
    cut.by_last_place = true;
    for (int i = 0; i < cut.parts; ++i) cut.ends[i] = chunks.end(chunks.count() - 2 + i);
    CheckCuda(CutTiles(cut, stream_), "parts of experts' rows");
    for (int i = 0; i < cut.parts; ++i) {
      ChunkedGathersOf(context).Await(chunks.count() - 2 + i);
      ExpertMatMul(PartOf(params, cut, i), stream_);
    }
    ChunkedGathersOf(context).End();
  } else {
    ExpertMatMul(params, stream_);
  }
  if (shared_rows > 0) MultiplyAll(shared_inner, Packed(w).shared_down, {}, shared, stream_);
  return {.routed = outputs, .shared = shared};
}

void CudaOps::CombineExperts(const Context& context, const ExpertWeights& /*w*/,
                             const Routing& routing, const ExpertRows& outputs, Tensor x,
                             const NormOut& norm) const {
  const CudaRouting& r = RoutingOf(routing);
  OUTRIDER_CHECK(x.rows == r.rows);
  if (context.place().ranks == 1 || outputs.routed.cols == x.cols) {
    return AddExperts(r, outputs, 0, x, norm, stream_);
  }
  const Share columns = OwnShare(context, Cut::kRows, x.cols);
  const Tensor own = x.Columns(columns.first, columns.count);
  const auto take_norm = [&](int64_t first, int64_t count) {
    if (norm.weight == nullptr) return;
    const NormOut part = norm.Rows(first, count);
    Norm(context, x.Rows(first, count), part.weight, part.eps, part.out);
  };
  const RowChunks chunks = ChunksOf(context, {own, x, Cut::kRows}, /*unit=*/128, RowChunks::kMost);
  if (chunks.count() <= 1) {
    AddExperts(r, outputs, 0, own, {}, stream_);
    GatherInPlace(context, x, Cut::kRows);
    return take_norm(0, x.rows);
  }
  ChunkedGathers& gathers = ChunkedGathersOf(context);
  for (int i = 0; i < chunks.count(); ++i) {
    AddExperts(r, outputs, chunks.first(i), own.Rows(chunks.first(i), chunks.rows(i)), {}, stream_);
    gathers.Give(i);
  }
  BeginGather(context, std::array{SharedTensor{own, x, Cut::kRows}}, chunks);
  for (int i = 0; i < chunks.count(); ++i) {
    gathers.Await(i);
    take_norm(chunks.first(i), chunks.rows(i));
  }
  gathers.End();
}

}  // namespace outrider::cuda
