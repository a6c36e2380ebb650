// CudaOps: DeepSeek-V4's attention, but for its indexer (sparse_ops.cc). Caches hold entries of
// bf16 or e4m3 codes, and float32 rows of tokens.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/compressed/compress_entries.h"
#include "outrider/kernels/cuda/compressed/compressed_attention.h"
#include "outrider/kernels/cuda/compressed/query_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/kernel_arguments.h"

namespace outrider::cuda {

namespace {

constexpr int kMostCallRows = kMaxMlaRequests;  // of attention

bool Holds(const LayerCache& cache, DType dtype, int64_t width) {
  return cache.dtype == dtype && cache.code_bytes == 0 && cache.width == width;
}

/// Whether entries are e4m3 codes; else they are bf16. Index keys have scales then, others have
/// none.
bool HoldsEntryCodes(const LayerCache& cache, int64_t width, bool are_keys) {
  const bool codes = cache.dtype == DType::kF8E4M3;
  OUTRIDER_CHECK(Holds(cache, codes ? DType::kF8E4M3 : DType::kBF16, width) &&
                 cache.has_scales == (codes && are_keys));
  return codes;
}

/// cos or sin [rows, 32], pairs (2i, 2i + 1).
const float* AnglesOf(const Rotary& rotary, const Tensor& angles) {
  OUTRIDER_CHECK(rotary.interleaved && angles.dtype == DType::kF32 &&
                 angles.cols == kCompressedRotary / 2 && angles.stride == angles.cols);
  return static_cast<const float*>(angles.data);
}

/// With the rows of a kind, planned once for all layers of a step.
CompressedWork& CompressedWorkOf(const Context& context, const CompressedKind& kind,
                                 const StepInputs& inputs, const LayerCache& window,
                                 cudaStream_t stream) {
  const DecodeRequests& requests = Cast(inputs).Of(window).all;
  OUTRIDER_CHECK(inputs.paths().Has(RowPath::kListed) && requests.first_row == 0);
  CudaArena& arena = ArenaOf(context);
  CompressedWork& work = arena.compressed[kind];
  CompressedPlan& plan = work.plan;
  if (requests.num_rows > plan.max_rows) {
    plan.max_rows = PowerOfTwo(requests.num_rows, 64);
    arena.Replace(plan, CompressedRowsBytes(plan.max_rows), "rows of attention");
    plan.rows = CarveCompressedRows(plan.memory.data(), plan.max_rows);
    work.planned_serial = 0;
  }
  if (plan.planned_serial != Cast(inputs).serial()) {
    CompressedRowsParams params;
    params.num_rows = requests.num_rows;
    params.num_requests = requests.count;
    params.query_start_loc = requests.query_start_loc;
    params.seq_lens = requests.seq_lens;
    params.window = kind.window;
    params.in_blocks = kind.in_blocks;
    params.ratio = kind.ratio;
    params.top_k = kind.top_k;
    CheckCuda(PlanCompressedRows(params, plan.rows, stream), "the plan of rows");
    plan.planned_serial = Cast(inputs).serial();
    ++arena.compressed_plans;
  }
  return work;
}

}  // namespace

void CudaOps::FinishQueries(const Context& context, const QueryArgs& args) const {
  if (args.q.rows == 0) return;
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * kCompressedDim);
  OUTRIDER_CHECK(args.index_q.cols == int64_t{args.index_heads} * kHopperIndexDim &&
                 args.products.cols == args.q.cols + args.index_q.cols);
  const Scratch::Frame frame(context.arena);
  const Tensor products = Readable(context, args.products, DType::kBF16, stream_);
  const ResultRows q(context, args.q, DType::kBF16, stream_);
  QueryHeadsParams params;
  params.num_rows = Int(products.rows);
  params.heads = args.heads;
  params.from = products.data;
  params.from_stride = products.stride;
  params.epsilon = args.norm_eps;
  params.cos = AnglesOf(args.rotary, args.rotary.cos);
  params.sin = AnglesOf(args.rotary, args.rotary.sin);
  params.q = q.rows().data;
  params.q_stride = q.rows().stride;
  if (args.index_heads > 0) {
    OUTRIDER_CHECK(Fits(args.index_q, DType::kBF16));
    params.index_heads = args.index_heads;
    params.index_q = args.index_q.data;
    params.index_stride = args.index_q.stride;
  }
  CheckCuda(FinishQueryHeads(params, stream_), "queries");
  q.Finish();
}

void CudaOps::WriteWindowRows(const Context& context, const StepInputs& inputs,
                              const WindowRowArgs& args) const {
  if (args.kv.rows == 0) return;
  const bool codes = HoldsEntryCodes(args.cache, kCompressedDim, /*are_keys=*/false);
  OUTRIDER_CHECK(args.kv.cols == kCompressedDim);
  const Scratch::Frame frame(context.arena);
  const Tensor kv = Readable(context, args.kv, DType::kF32, stream_);
  WindowRowsParams params;
  params.num_rows = Int(kv.rows);
  params.kv = kv.data;
  params.kv_stride = kv.stride;
  params.weight = args.norm;
  params.epsilon = args.norm_eps;
  params.cos = AnglesOf(args.rotary, args.rotary.cos);
  params.sin = AnglesOf(args.rotary, args.rotary.sin);
  params.slots = Cast(inputs).Of(args.cache).slots;
  params.cache = args.cache.data;
  params.codes = codes;
  params.rounds = args.cache.holds_rounded;
  params.block_stride = BlockBytes(args.cache);
  params.block_size = args.cache.block_size;
  if (args.q.rows == 0) {
    CheckCuda(outrider::cuda::WriteWindowRows(params, stream_), "rows of a window");
    return;
  }
  OUTRIDER_CHECK(args.q.rows == kv.rows && args.q_out.cols == args.q.cols);
  const Tensor q = Readable(context, args.q, DType::kF32, stream_);
  const ResultRows results(context, args.q_out, DType::kBF16, stream_);
  params.q = q.data;
  params.q_stride = q.stride;
  params.q_columns = Int(q.cols);
  params.q_weight = args.q_norm;
  params.q_out = results.rows().data;
  params.q_out_stride = results.rows().stride;
  CheckCuda(outrider::cuda::WriteWindowRows(params, stream_), "rows of a window");
  results.Finish();
}

void CudaOps::WriteTokenRows(const Context& context, const StepInputs& inputs, Tensor x,
                             std::span<const TokenRowArgs> compressors,
                             const Product* beside) const {
  if (x.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor read = Readable(context, x, DType::kBF16, stream_);
  std::vector<std::pair<const Weight*, MatMulDestination>> products;
  for (const TokenRowArgs& args : compressors) {
    const LayerCache& tokens = args.tokens;
    const int channels = tokens.width / 2;
    OUTRIDER_CHECK(Holds(tokens, DType::kF32, 2 * args.values->rows) &&
                   args.gates->rows == args.values->rows);
    for (const Weight* const w : {args.values, args.gates}) {
      OUTRIDER_CHECK(w->cut.rows == Cut::kNone && w->cut.input == Cut::kNone);
    }
    MatMulDestination to = {.columns = channels,
                            .y = reinterpret_cast<float*>(tokens.data),
                            .row_stride = tokens.width,
                            .slots = Cast(inputs).Of(tokens).slots,
                            .block_size = tokens.block_size,
                            .block_stride = tokens.block_stride};
    products.emplace_back(args.values, to);
    to.y += channels;
    products.emplace_back(args.gates, to);
  }
  std::optional<ResultRows> results;
  if (beside != nullptr) {
    OUTRIDER_CHECK(beside->x.data == x.data && !beside->accumulate && !beside->silu_mul);
    results.emplace(context, beside->y, DType::kF32, stream_);
    products.emplace_back(beside->w,
                          MatMulDestination{.columns = Int(beside->y.cols),
                                            .y = static_cast<float*>(results->rows().data),
                                            .row_stride = results->rows().stride});
  }
  MatMulParams params;
  params.rows = Int(read.rows);
  params.x = read.data;
  params.x_stride = read.stride;
  for (size_t i = 0; i < products.size();) {
    params.w = Packed(*products[i].first);
    params.num_destinations = 0;
    params.destinations[params.num_destinations++] = products[i].second;
    while (++i < products.size() &&
           LiesBehind(Packed(*products[i - 1].first), Packed(*products[i].first))) {
      params.w.n += Packed(*products[i].first).n;
      params.destinations[params.num_destinations++] = products[i].second;
    }
    MatMul(params, stream_);
  }
  if (results.has_value()) results->Finish();
}

void CudaOps::Compress(const Context& context, const StepInputs& inputs,
                       std::span<const CompressArgs> compressors) const {
  OUTRIDER_CHECK(!compressors.empty() && std::ssize(compressors) <= kMaxCompressors);
  const DecodeRequests& requests = Cast(inputs).Of(compressors[0].tokens).all;
  if (requests.num_rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const CompressArgs& first = compressors[0];
  const auto half = first.frequencies.size();
  OUTRIDER_CHECK(first.shape.rope == kCompressedRotary && half == std::size_t{32});
  CompressParams params;
  params.num_rows = requests.num_rows;
  params.positions = Cast(inputs).positions();
  // Whose rows they are: of any kind of attention.
  params.rows = CompressedWorkOf(context, {}, inputs, first.tokens, stream_).plan.rows.rows;
  params.epsilon = first.shape.norm_eps;
  params.magnitude = first.magnitude;
  std::copy(first.frequencies.begin(), first.frequencies.end(), params.frequencies);
  for (const CompressArgs& args : compressors) {
    const CompressorShape& shape = args.shape;
    OUTRIDER_CHECK(Holds(args.tokens, DType::kF32, 2 * shape.channels()));
    const bool codes = HoldsEntryCodes(args.entries, shape.width, shape.width == kHopperIndexDim);
    const CacheInputs& tokens = Cast(inputs).Of(args.tokens);
    Compressor& c = params.compressors[params.count++];
    c.width = shape.width;
    c.ratio = shape.ratio;
    c.overlaps = shape.overlaps;
    c.states = reinterpret_cast<const float*>(args.tokens.data);
    c.state_block_stride = BlockBytes(args.tokens);
    c.state_block_size = args.tokens.block_size;
    c.state_blocks = tokens.all.block_tables;
    c.state_blocks_stride = tokens.all.block_table_stride;
    c.state_blocks_mask = tokens.all.block_table_mask;
    c.bias = args.bias;
    c.norm = args.norm;
    c.entries = args.entries.data;
    c.codes = codes;
    c.rounds = args.entries.holds_rounded;
    c.entry_block_stride = BlockBytes(args.entries);
    c.entry_block_size = args.entries.block_size;
    c.entry_slots = Cast(inputs).Of(args.entries).slots;
  }
  CheckCuda(CompressEntries(params, stream_), "compressed entries");
}

void CudaOps::CompressedAttention(const Context& context, const StepInputs& inputs,
                                  const CompressedAttentionArgs& args) const {
  const int rows = Int(args.q.rows);
  if (rows == 0) return;
  const bool codes = HoldsEntryCodes(args.window_rows, kCompressedDim, /*are_keys=*/false);
  OUTRIDER_CHECK(args.ratio == 0 ||
                 (HoldsEntryCodes(args.entries, kCompressedDim, /*are_keys=*/false) == codes &&
                  !args.in_blocks));
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * kCompressedDim &&
                 args.out.cols == args.q.cols && args.out.rows == rows);
  const DecodeRequests& of_window = Cast(inputs).Of(args.window_rows).all;
  OUTRIDER_CHECK(of_window.num_rows == rows);
  const Scratch::Frame frame(context.arena);
  const Tensor q = Readable(context, args.q, DType::kBF16, stream_);
  const ResultRows results(context, args.out, DType::kBF16, stream_);
  OUTRIDER_CHECK(q.stride == q.cols && results.rows().stride == results.rows().cols);
  CudaArena& arena = ArenaOf(context);
  const int top_k = args.selected != nullptr ? arena.PlanOf(*args.selected).top_k : 0;
  const CompressedKind kind = {.heads = args.heads,
                               .window = args.window,
                               .ratio = args.ratio,
                               .top_k = top_k,
                               .in_blocks = args.in_blocks};
  CompressedWork& work = CompressedWorkOf(context, kind, inputs, args.window_rows, stream_);
  const int visible =
      args.ratio > 0 ? Cast(inputs).Of(args.entries).all.max_seq_len / args.ratio : 0;
  // Blocks are rows of the call.
  const int in_window = args.window + (args.in_blocks ? rows : 0);
  const int most = in_window + (top_k > 0 ? std::min(top_k, visible) : visible);
  const int call_rows = std::min(rows, kMostCallRows);
  if (call_rows > work.limits.max_rows || most > work.limits.max_count) {
    work.limits = {.max_rows = std::max(PowerOfTwo(call_rows, 64), work.limits.max_rows),
                   .max_count = std::max(PowerOfTwo(most, 1024), work.limits.max_count),
                   .heads = args.heads};
    arena.Replace(work, CompressedAttentionWorkspaceBytes(work.limits), "attention");
  }
  CompressedAttentionParams params;
  params.heads = args.heads;
  params.codes = codes;
  params.rows = work.plan.rows;
  params.window = PagesOf(args.window_rows, of_window);
  if (args.ratio > 0) {
    params.entries = PagesOf(args.entries, Cast(inputs).Of(args.entries).all);
  }
  if (args.selected != nullptr) {
    params.lists = args.selected->entries;
    params.lists_stride = args.selected->stride;
  }
  params.softmax_scale = args.softmax_scale;
  params.sink = args.sinks;
  auto* const lse = context.arena.Take<float>(int64_t{rows} * args.heads);
  const uint64_t serial = Cast(inputs).serial();
  for (int first = 0; first < rows; first += call_rows) {
    const int count = std::min(call_rows, rows - first);
    params.first_row = first;
    params.num_rows = count;
    params.q = q.Rows(first, count).data;
    params.output = results.rows().Rows(first, count).data;
    params.lse = lse + int64_t{first} * args.heads;
    if (args.back != nullptr) {
      params.cos = AnglesOf(*args.back, args.back->cos) + int64_t{first} * kCompressedRotary / 2;
      params.sin = AnglesOf(*args.back, args.back->sin) + int64_t{first} * kCompressedRotary / 2;
    }
    // Once for all layers of a step whose rows are attended to in one call.
    if (work.planned_serial != serial || work.planned_first != first ||
        work.planned_count != count) {
      CheckCuda(CompressedAttentionPlan(params, work.limits, work.memory.data(), stream_),
                "the plan of attention");
      work.planned_serial = serial;
      work.planned_first = first;
      work.planned_count = count;
      ++arena.compressed_plans;
    }
    CheckCuda(outrider::cuda::CompressedAttention(params, work.limits, work.memory.data(), stream_),
              "attention");
  }
  results.Finish();
}

}  // namespace outrider::cuda
