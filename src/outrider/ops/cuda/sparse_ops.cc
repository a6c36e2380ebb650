// CudaOps: an indexer's keys and choice, and latent attention to what it chose.
#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/sparse/choose_entries.h"
#include "outrider/kernels/cuda/sparse/index_keys.h"
#include "outrider/kernels/cuda/sparse/index_scores.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/kernel_arguments.h"

namespace outrider::cuda {

static_assert(kHopperIndexDim == kIndexDim && kHopperChosen == kMaxChosen);

namespace {

constexpr int kRowStep = 32;  // rows whose scores are in memory together are a multiple of it
constexpr int kMostCallRows = 4096;

/// Rounded up to whole 16 bytes of 4-byte numbers.
int64_t WholeVectors(int64_t count) { return (count + 3) / 4 * 4; }

/// Whether keys are codes with scales; else they are bf16.
bool HoldsScaledKeys(const LayerCache& keys) {
  OUTRIDER_CHECK(keys.width == kIndexDim && keys.code_bytes == 0 &&
                 keys.dtype == (keys.has_scales ? DType::kF8E4M3 : DType::kBF16));
  return keys.has_scales;
}

/// How many rows' scores fit into `bytes`.
int ScoreRows(int64_t bytes, int64_t scores_stride) {
  const int64_t rows = bytes / (scores_stride * static_cast<int64_t>(sizeof(float)));
  return Int(std::clamp<int64_t>(rows / kRowStep * kRowStep, kRowStep, kMostCallRows));
}

/// Made once for all layers of a step.
const SparsePlan& PlanSparse(const Context& context, const SelectEntriesArgs& args,
                             const CudaStepInputs& inputs, int score_rows, cudaStream_t stream) {
  const DecodeRequests& requests = inputs.Of(args.keys).all;
  CudaArena& arena = ArenaOf(context);
  SparsePlan& plan = arena.sparse[{args.heads, args.ratio, args.top_k}];
  if (requests.num_rows > plan.max_rows) {
    plan.max_rows = PowerOfTwo(requests.num_rows, 64);
    arena.Replace(plan, SparseRowsBytes(plan.max_rows), "rows of an indexer");
    plan.rows = CarveSparseRows(plan.memory.data(), plan.max_rows);
  }
  if (plan.planned_serial != inputs.serial()) {
    SparseRowsParams params;
    params.num_rows = requests.num_rows;
    params.num_requests = requests.count;
    params.query_start_loc = requests.query_start_loc;
    params.seq_lens = requests.seq_lens;
    params.ratio = args.ratio;
    params.top_k = args.top_k;
    params.index_heads = args.heads;
    params.score_rows = score_rows;
    CheckCuda(PlanSparseRows(params, plan.rows, stream), "the plan of an indexer's rows");
    plan.planned_serial = inputs.serial();
    ++arena.sparse_plans;
  }
  plan.top_k = args.top_k;
  return plan;
}

ListedWork& ListedWorkOf(CudaArena& arena, int heads, int rows, int top_k) {
  OUTRIDER_CHECK(rows <= kMostCallRows);
  ListedWork& work = arena.listed[{heads, top_k}];
  if (rows > work.limits.max_rows) {
    work.limits = {.max_rows = PowerOfTwo(rows, 64), .max_count = top_k, .heads = heads};
    arena.Replace(work, ListedAttentionWorkspaceBytes(work.limits), "attention");
  }
  return work;
}

}  // namespace

void CudaOps::WriteIndexKeys(const Context& /*context*/, const StepInputs& inputs,
                             const IndexKeyArgs& args) const {
  const bool codes = HoldsScaledKeys(args.cache);
  if (args.keys.rows == 0) return;
  const Rotary& rotary = args.rotary;
  OUTRIDER_CHECK(Fits(args.keys, DType::kF32) && args.keys.cols == kIndexDim);
  OUTRIDER_CHECK(rotary.cos.cols == kHopperRotary / 2 && rotary.cos.stride == rotary.cos.cols &&
                 rotary.sin.stride == rotary.sin.cols);
  IndexKeysParams params;
  params.num_rows = Int(args.keys.rows);
  params.x = static_cast<const float*>(args.keys.data);
  params.x_stride = args.keys.stride;
  params.weight = args.norm;
  params.bias = args.bias;
  params.epsilon = args.norm_eps;
  params.cos = static_cast<const float*>(rotary.cos.data);
  params.sin = static_cast<const float*>(rotary.sin.data);
  params.interleaved = rotary.interleaved;
  params.slots = Cast(inputs).Of(args.cache).slots;
  params.cache = args.cache.data;
  params.codes = codes;
  params.block_stride = BlockBytes(args.cache);
  params.block_size = args.cache.block_size;
  CheckCuda(outrider::cuda::WriteIndexKeys(params, stream_), "index keys");
}

SelectedEntries CudaOps::SelectEntries(const Context& context, const StepInputs& inputs,
                                       const SelectEntriesArgs& args) const {
  const DecodeRequests& requests = Cast(inputs).Of(args.keys).all;
  const int rows = Int(args.q.rows);
  OUTRIDER_CHECK(inputs.paths().Has(RowPath::kListed) && requests.first_row == 0 &&
                 requests.num_rows == rows);
  if (rows == 0) return {};
  const bool codes = HoldsScaledKeys(args.keys);
  OUTRIDER_CHECK(Fits(args.q, DType::kBF16) && args.q.stride == args.q.cols &&
                 args.q.cols == int64_t{args.heads} * kIndexDim);
  OUTRIDER_CHECK(Fits(args.weights, DType::kF32) && args.weights.cols == args.heads);
  const int max_visible = requests.max_seq_len / args.ratio;
  const int64_t stride = std::max<int64_t>(WholeVectors(std::min(max_visible, args.top_k)), 4);
  auto* const lists = context.arena.Take<int32_t>(rows * stride);

  const Scratch::Frame frame(context.arena);
  // Where all rows see no more than they may choose, nothing is scored.
  const bool scored = max_visible > args.top_k;
  const int64_t scores_stride = scored ? WholeVectors(max_visible) : 4;
  const int score_rows = ScoreRows(score_bytes(), scores_stride);
  const SparsePlan& plan = PlanSparse(context, args, Cast(inputs), score_rows, stream_);

  IndexScoresParams scores;
  scores.step_rows = rows;
  scores.rows = plan.rows;
  scores.heads = args.heads;
  scores.q = args.q.data;
  scores.weights = static_cast<const float*>(args.weights.data);
  scores.weights_stride = args.weights.stride;
  if (scored && (codes || args.keys.holds_rounded)) {
    IndexQueriesParams queries;
    queries.num_rows = rows;
    queries.heads = args.heads;
    queries.q = args.q.data;
    const int64_t numbers = args.q.rows * args.q.cols;
    if (codes) {
      queries.weights = scores.weights;
      queries.weights_stride = scores.weights_stride;
      queries.codes = context.arena.Take<std::byte>(numbers);
      queries.scaled = context.arena.Take<float>(args.q.rows * args.heads);
      scores.weights = queries.scaled;
      scores.weights_stride = args.heads;
    } else {
      queries.fp4_numbers = true;
      queries.codes = context.arena.Take<BFloat16>(numbers);
    }
    CheckCuda(RoundIndexQueries(queries, stream_), "rounding of index queries");
    scores.q = queries.codes;
  }
  scores.keys = PagesOf(args.keys, requests);
  scores.codes = codes;
  if (scored) scores.scores = context.arena.Take<float>(std::min(rows, score_rows) * scores_stride);
  scores.scores_stride = scores_stride;
  ChooseEntriesParams choice;
  choice.rows = plan.rows;
  choice.top_k = args.top_k;
  choice.max_visible = max_visible;
  choice.scores = scores.scores;
  choice.scores_stride = scores_stride;
  choice.lists = lists;
  choice.lists_stride = stride;
  for (int first = 0; first < rows; first += score_rows) {
    if (first > 0) context.PauseLaunching();
    scores.first_row = choice.first_row = first;
    scores.num_rows = choice.num_rows = std::min(score_rows, rows - first);
    if (scored) CheckCuda(ScoreIndexKeys(scores, stream_), "scores of index keys");
    CheckCuda(ChooseEntries(choice, stream_), "the choice of entries");
  }
  return {lists, plan.rows.counts, stride};
}

void CudaOps::SelectedAttention(const Context& context, const StepInputs& inputs,
                                const SelectedAttentionArgs& args) const {
  const int rows = Int(args.q.rows);
  if (rows == 0) return;
  const SparsePlan& selected_rows = ArenaOf(context).PlanOf(*args.selected);
  OUTRIDER_CHECK(args.first_row + rows <= selected_rows.max_rows);
  const bool codes = args.entries.dtype == DType::kF8E4M3;
  OUTRIDER_CHECK(args.entries.width == kMlaKeyDim && args.entries.code_bytes == 0 &&
                 !args.entries.has_scales && (codes || args.entries.dtype == DType::kBF16));
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * kMlaKeyDim &&
                 args.out.cols == int64_t{args.heads} * kMlaValueDim && args.out.rows == rows);
  const Scratch::Frame frame(context.arena);
  const Tensor q = Readable(context, args.q, DType::kBF16, stream_);
  const ResultRows results(context, args.out, DType::kBF16, stream_);
  OUTRIDER_CHECK(q.stride == q.cols && results.rows().stride == results.rows().cols);
  ListedAttentionParams params;
  params.first_row = args.first_row;
  params.num_rows = rows;
  params.heads = args.heads;
  params.rows = selected_rows.rows;
  params.q = q.data;
  params.lists = args.selected->entries;
  params.lists_stride = args.selected->stride;
  params.entries = PagesOf(args.entries, Cast(inputs).Of(args.entries).all);
  params.entry_type = codes ? MlaCacheType::kE4m3 : MlaCacheType::kBf16;
  params.softmax_scale = args.softmax_scale;
  params.output = results.rows().data;
  params.lse = context.arena.Take<float>(int64_t{rows} * args.heads);
  ListedWork& work = ListedWorkOf(ArenaOf(context), args.heads, rows, selected_rows.top_k);
  // Once for all layers of a step whose rows are attended to in one call.
  const uint64_t serial = Cast(inputs).serial();
  if (work.planned_serial != serial || work.planned_rows != &selected_rows ||
      work.planned_first != args.first_row || work.planned_count != rows) {
    CheckCuda(ListedAttentionPlan(params, work.limits, work.memory.data(), stream_),
              "the plan of attention");
    work.planned_serial = serial;
    work.planned_rows = &selected_rows;
    work.planned_first = args.first_row;
    work.planned_count = rows;
  }
  CheckCuda(ListedAttention(params, work.limits, work.memory.data(), stream_), "attention");
  results.Finish();
}

}  // namespace outrider::cuda
