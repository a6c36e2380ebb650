// CudaOps: grouped-query attention.
#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/gqa/head_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/kernel_arguments.h"

namespace outrider::cuda {

static_assert(kHopperHeadDim == kGqaHeadDim && kHopperQueryHeads == kGqaTileRows);

namespace {

void CheckEntries(const PerHeadShape& s, const LayerCache& cache) {
  OUTRIDER_CHECK(s.nope == kGqaHeadDim && s.rope == 0 && s.value == kGqaHeadDim &&
                 cache.width == 2 * s.kv_heads * kGqaHeadDim && cache.code_bytes == 0);
}

GqaWork& GqaWorkOf(CudaArena& arena, const GqaShape& shape, GqaBody body,
                   const DecodeRequests& requests) {
  GqaWork& work = arena.gqa[{shape.heads, shape.kv_heads, shape.window, body}];
  if (requests.num_rows > work.limits.max_tokens || requests.count > work.limits.max_requests) {
    work.limits = {
        .max_tokens = PowerOfTwo(std::max(requests.num_rows, work.limits.max_tokens), 64),
        .max_requests = PowerOfTwo(std::max(requests.count, work.limits.max_requests), 64),
        .shape = shape};
    arena.Replace(work, GqaWorkspaceBytes(work.limits), "attention");
  }
  return work;
}

}  // namespace

void CudaOps::WriteHeadEntries(const Context& /*context*/, const PerHeadShape& s,
                               const StepInputs& inputs, const HeadEntryArgs& args) const {
  CheckEntries(s, args.cache);
  if (args.k.rows == 0) return;
  const bool has_queries = args.q.cols > 0;
  OUTRIDER_CHECK(Fits(args.k, DType::kBF16) && Fits(args.v, DType::kBF16) &&
                 (!has_queries || Fits(args.q, DType::kBF16)));
  const Rotary& rotary = args.rotary;
  OUTRIDER_CHECK(rotary.cos.stride == rotary.cos.cols && rotary.sin.stride == rotary.sin.cols);
  HeadRowsParams params;
  params.num_rows = Int(args.k.rows);
  params.heads = has_queries ? s.heads : 0;
  params.kv_heads = s.kv_heads;
  params.q = args.q.data;
  params.q_stride = args.q.stride;
  params.k = args.k.data;
  params.k_stride = args.k.stride;
  params.v = args.v.data;
  params.v_stride = args.v.stride;
  params.q_norm = args.q_norm;
  params.k_norm = args.k_norm;
  params.epsilon = args.norm_eps;
  params.cos = static_cast<const float*>(rotary.cos.data);
  params.sin = static_cast<const float*>(rotary.sin.data);
  params.rotary_dims = Int(2 * rotary.cos.cols);
  params.interleaved = rotary.interleaved;
  params.slots = Cast(inputs).Of(args.cache).slots;
  params.cache = args.cache.data;
  params.cache_dtype = args.cache.dtype;
  params.block_stride = BlockBytes(args.cache);
  params.block_size = args.cache.block_size;
  CheckCuda(NormHeadRows(params, stream_), "cache entries");
}

void CudaOps::AttendPerHead(const Context& context, const PerHeadShape& s, GqaBody body,
                            const DecodeRequests& requests, uint64_t serial,
                            const AttentionArgs& args) const {
  if (requests.num_rows == 0) return;
  const auto rows_of = [&](Tensor x) { return x.Rows(requests.first_row, requests.num_rows); };
  const Tensor q = rows_of(args.q);
  const ResultRows results(context, rows_of(args.out), DType::kBF16, stream_);
  OUTRIDER_CHECK(Fits(q, DType::kBF16));
  GqaParams params;
  params.shape = {.heads = s.heads, .kv_heads = s.kv_heads, .window = s.window};
  params.body = body;
  params.requests = {.count = requests.count,
                     .num_tokens = requests.num_rows,
                     .query_start_loc = requests.query_start_loc,
                     .seq_lens = requests.seq_lens,
                     .block_tables = requests.block_tables,
                     .block_table_stride = requests.block_table_stride};
  params.q = q.data;
  params.q_stride = q.stride;
  params.cache = args.cache.data;
  params.cache_dtype = args.cache.dtype;
  params.block_stride = BlockBytes(args.cache);
  params.num_blocks = args.cache.num_blocks;
  params.block_size = args.cache.block_size;
  params.softmax_scale = s.softmax_scale;
  if (args.gates.cols > 0) {
    const Tensor gates = rows_of(args.gates);
    OUTRIDER_CHECK(gates.dtype == DType::kBF16);
    params.gates = gates.data;
    params.gate_stride = gates.stride;
  }
  params.output = results.rows().data;
  params.output_stride = results.rows().stride;
  GqaWork& work = GqaWorkOf(ArenaOf(context), params.shape, body, requests);
  // Once for all layers of a step.
  if (work.planned_serial != serial) {
    CheckCuda(PlanGqaAttention(params, work.limits, work.memory.data(), stream_),
              "the plan of attention");
    work.planned_serial = serial;
  }
  CheckCuda(GqaAttention(params, work.limits, work.memory.data(), stream_), "attention");
  results.Finish();
}

void CudaOps::PerHeadAttention(const Context& context, const PerHeadShape& s,
                               const StepInputs& inputs, const AttentionArgs& args) const {
  CheckEntries(s, args.cache);
  const CacheInputs& read = Cast(inputs).Of(args.cache);
  const uint64_t serial = Cast(inputs).serial();
  AttendPerHead(context, s, GqaBody::kFewRows, read.decode, serial, args);
  if (read.per_head_prompts.num_rows == 0) return;
  context.PauseLaunching();
  AttendPerHead(context, s, GqaBody::kManyRows, read.per_head_prompts, serial, args);
}

}  // namespace outrider::cuda
