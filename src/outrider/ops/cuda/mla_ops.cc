// CudaOps: multi-head latent attention.
#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/mla_decode/head_projection.h"
#include "outrider/kernels/cuda/prompt/prompt_rows.h"
#include "outrider/kernels/cuda/rows/step_rows.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/kernel_arguments.h"

namespace outrider::cuda {

static_assert(kHopperLatent == kMlaValueDim && kHopperRotary == kMlaKeyDim - kMlaValueDim);

namespace {

constexpr int kLatentWidth = kMlaValueDim;
constexpr int kRopeWidth = kMlaKeyDim - kMlaValueDim;

RotaryTable TableOf(const Rotary& rotary) {
  OUTRIDER_CHECK(rotary.cos.cols == kRopeWidth / 2 && rotary.cos.stride == rotary.cos.cols);
  return {.cos = static_cast<const float*>(rotary.cos.data),
          .sin = static_cast<const float*>(rotary.sin.data),
          .interleaved = rotary.interleaved};
}

void CheckShape(const MlaShape& s, const LayerCache& cache) {
  OUTRIDER_CHECK(s.latent == kLatentWidth && s.rope == kRopeWidth && cache.width == kMlaKeyDim &&
                 (cache.dtype == DType::kBF16 || cache.dtype == DType::kF8E4M3));
}

/// Entries of 8 bits are stored as they are, without a scale.
MlaCacheType TypeOf(const LayerCache& cache) {
  return cache.dtype == DType::kBF16 ? MlaCacheType::kBf16 : MlaCacheType::kE4m3;
}

DecodeWork& DecodeWorkOf(CudaArena& arena, int32_t group, const MlaDecodeLimits& needed) {
  DecodeWork& work = arena.decode[{group, needed.heads}];
  MlaDecodeLimits& limits = work.limits;
  const bool fits = needed.max_tokens <= limits.max_tokens &&
                    needed.max_requests <= limits.max_requests &&
                    needed.max_seq_len <= limits.max_seq_len;
  if (!fits) {
    limits = {.max_tokens = PowerOfTwo(std::max(needed.max_tokens, limits.max_tokens), 64),
              .max_requests = PowerOfTwo(std::max(needed.max_requests, limits.max_requests), 64),
              .max_seq_len = PowerOfTwo(std::max(needed.max_seq_len, limits.max_seq_len), 4096),
              .heads = needed.heads};
    arena.Replace(work, MlaDecodeWorkspaceBytes(limits), "attention");
  }
  return work;
}

}  // namespace

void CudaOps::Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
                     const Rotary& rotary) const {
  if (x.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor rows = Readable(context, x, DType::kBF16, stream_);
  CheckCuda(RotateRows({.num_rows = Int(rows.rows),
                        .heads = heads,
                        .width = Int(rows.cols / heads),
                        .offset = offset,
                        .row_stride = rows.stride,
                        .x = rows.data,
                        .rotary = TableOf(rotary)},
                       stream_),
            "rotation of queries");
  if (rows.data != x.data) CopyTensor(rows, x, stream_);
}

void CudaOps::WriteLatentEntries(const Context& context, const MlaShape& s,
                                 const StepInputs& inputs, const EntryArgs& args) const {
  CheckShape(s, args.cache);
  if (args.kv.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor kv =
      Fits(args.kv, args.kv.dtype) ? args.kv : Readable(context, args.kv, DType::kBF16, stream_);
  LatentWriteParams params;
  params.num_rows = Int(kv.rows);
  params.input_dtype = kv.dtype;
  params.row_stride = kv.stride;
  params.kv = kv.data;
  params.weight = args.norm;
  params.epsilon = s.norm_eps;
  params.rotary = TableOf(args.rotary);
  params.slot_mapping = Cast(inputs).Of(args.cache).slots;
  params.cache = args.cache.data;
  params.cache_type = TypeOf(args.cache);
  params.block_stride = BlockBytes(args.cache);
  params.block_size = args.cache.block_size;
  if (args.q_norm != nullptr) {
    // The kernel reads both from rows of one stride.
    OUTRIDER_CHECK(Fits(args.q_down, kv.dtype) && args.q_down.stride == kv.stride &&
                   Fits(args.q_latent, DType::kBF16) && args.q_latent.stride == args.q_latent.cols);
    params.q = args.q_down.data;
    params.q_columns = Int(args.q_down.cols);
    params.q_weight = args.q_norm;
    params.q_out = args.q_latent.data;
  }
  CheckCuda(WriteLatentRows(params, stream_), "cache entries");
}

void CudaOps::Absorb(const Context& context, const MlaShape& s, const KvUpWeight& w,
                     const Rotary& rotary, Tensor q, Tensor absorbed) const {
  if (q.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor from = Readable(context, q, DType::kBF16, stream_);
  const ResultRows results(context, absorbed, DType::kBF16, stream_);
  const RotaryTable angles = TableOf(rotary);
  HeadProjectionParams params;
  params.num_tokens = Int(from.rows);
  params.heads = s.heads;
  params.k = s.nope;
  params.n = s.latent;
  params.x = from.data;
  params.x_token_stride = from.stride;
  params.x_head_stride = s.nope + s.rope;
  params.w = Packed(w).key_up_t;
  params.y = results.rows().data;
  params.y_token_stride = results.rows().stride;
  params.y_head_stride = kMlaKeyDim;
  params.rotary = &angles;
  CheckCuda(ProjectHeads(params, stream_), "absorption");
  results.Finish();
}

void CudaOps::Unabsorb(const Context& context, const MlaShape& s, const KvUpWeight& w,
                       Tensor latent, Tensor out) const {
  if (latent.rows == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor from = Readable(context, latent, DType::kBF16, stream_);
  const ResultRows results(context, out, DType::kBF16, stream_);
  HeadProjectionParams params;
  params.num_tokens = Int(from.rows);
  params.heads = s.heads;
  params.k = s.latent;
  params.n = s.value;
  params.x = from.data;
  params.x_token_stride = from.stride;
  params.x_head_stride = s.latent;
  params.w = Packed(w).value_up;
  params.y = results.rows().data;
  params.y_token_stride = results.rows().stride;
  params.y_head_stride = s.value;
  CheckCuda(ProjectHeads(params, stream_), "un-absorption");
  results.Finish();
}

void CudaOps::DecodeAttention(const Context& context, const MlaShape& s, const StepInputs& inputs,
                              const AttentionArgs& args) const {
  CheckShape(s, args.cache);
  const DecodeRequests& requests = Cast(inputs).Of(args.cache).decode;
  if (requests.count == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor q = Readable(context, args.q, DType::kBF16, stream_);
  const ResultRows results(context, args.out, DType::kBF16, stream_);
  OUTRIDER_CHECK(q.stride == q.cols && results.rows().stride == results.rows().cols);
  MlaDecodeParams params;
  params.num_requests = requests.count;
  params.num_tokens = Int(q.rows);
  params.heads = s.heads;
  params.q = q.data;
  params.query_start_loc = requests.query_start_loc;
  params.seq_lens = requests.seq_lens;
  params.block_table = requests.block_tables;
  params.block_table_stride = requests.block_table_stride;
  params.cache = args.cache.data;
  params.cache_type = TypeOf(args.cache);
  params.num_blocks = args.cache.num_blocks;
  params.page_size = args.cache.block_size;
  params.page_stride = BlockBytes(args.cache);
  params.softmax_scale = s.softmax_scale;
  params.relaxed = relaxed_attention();
  // The model's, not those of a rank's heads.
  params.splits = DefaultMlaSplits(s.heads * context.place().ranks);
  params.output = results.rows().data;
  params.lse = context.arena.Take<float>(q.rows * s.heads);
  DecodeWork& work = DecodeWorkOf(ArenaOf(context), args.cache.group,
                                  {.max_tokens = params.num_tokens,
                                   .max_requests = params.num_requests,
                                   .max_seq_len = requests.max_seq_len,
                                   .heads = s.heads});
  // Once for the layers of a step that have one shape.
  params.plan_settled = work.planned_serial == Cast(inputs).serial();
  if (!params.plan_settled) {
    CheckCuda(MlaDecodePlan(params, work.limits, work.memory.data(), stream_),
              "the plan of attention");
    work.planned_serial = Cast(inputs).serial();
  }
  CheckCuda(MlaDecode(params, work.limits, work.memory.data(), stream_), "attention");
  results.Finish();
}

// Keys and values of the whole prompts so far are made from the cache, so that a key's bits do not
// depend on when it was computed.
void CudaOps::AttendToPrompts(const Context& context, const MlaShape& s, const KvUpWeight& w,
                              const PromptGroup& prompts, const AttentionArgs& args,
                              uint64_t batch) const {
  const Scratch::Frame frame(context.arena);
  // Read where they are: the arena reaches further.
  const Tensor q =
      Readable(context, args.q.Rows(prompts.first_row, prompts.num_rows), DType::kBF16, stream_);
  OUTRIDER_CHECK(kPromptSlackRows * q.stride * DTypeSize(q.dtype) <= kQueryReach);
  outrider::cuda::PromptAttention& attention = prompt_plans_->Of(s, q.stride);
  const int num_keys = prompts.num_keys;
  const int64_t key_room = num_keys + kPromptSlackRows;
  const Tensor latent = TakeRows(context, DType::kBF16, num_keys, s.latent);
  const Tensor rope = TakeRows(context, DType::kBF16, num_keys, s.rope);
  const Tensor kv =
      TakeRows(context, DType::kBF16, key_room, int64_t{s.heads} * (s.nope + s.value));
  const Tensor keys =
      TakeRows(context, DType::kBF16, key_room, int64_t{s.heads} * (s.nope + s.rope));
  CheckCuda(GatherLatentRows({.num_prompts = prompts.count,
                              .num_rows = num_keys,
                              .key_start_loc = prompts.key_start_loc,
                              .block_tables = prompts.block_tables,
                              .block_table_stride = prompts.block_table_stride,
                              .page_size = args.cache.block_size,
                              .page_stride = BlockBytes(args.cache),
                              .cache = args.cache.data,
                              .cache_type = TypeOf(args.cache),
                              .latent = latent.data,
                              .rope = rope.data},
                             stream_),
            "reading cache entries");
  MatMulParams expand;
  expand.rows = num_keys;
  expand.x = latent.data;
  expand.x_stride = latent.stride;
  expand.w = Packed(w).kv_up;
  expand.y = kv.data;
  expand.y_stride = kv.stride;
  MatMul(expand, stream_);
  CheckCuda(MakePromptKeys({.num_rows = num_keys,
                            .padded_rows = Int(key_room),
                            .heads = s.heads,
                            .nope = s.nope,
                            .value = s.value,
                            .kv = kv.data,
                            .rope = rope.data,
                            .k = keys.data},
                           stream_),
            "keys of prompts");
  const ResultRows results(context, args.out.Rows(prompts.first_row, prompts.num_rows),
                           DType::kBF16, stream_);
  OUTRIDER_CHECK(results.rows().stride == results.rows().cols);
  attention.Run({.batch = batch,
                 .num_prompts = prompts.count,
                 .max_queries = prompts.max_queries,
                 .max_keys = prompts.max_keys,
                 .query_start_loc = prompts.query_start_loc,
                 .key_start_loc = prompts.key_start_loc,
                 .q = q.data,
                 .k = keys.data,
                 .v = static_cast<const BFloat16*>(kv.data) + s.nope,
                 .out = results.rows().data},
                stream_);
  results.Finish();
}

void CudaOps::PromptAttention(const Context& context, const MlaShape& s, const KvUpWeight& w,
                              const StepInputs& inputs, const AttentionArgs& args) const {
  CheckShape(s, args.cache);
  context.PauseLaunching();
  const std::vector<PromptGroup>& groups = Cast(inputs).Of(args.cache).prompts;
  // With one group of prompts all layers of a shape ask for one plan.
  const uint64_t batch = groups.size() == 1 ? Cast(inputs).serial() : 0;
  for (const PromptGroup& prompts : groups) {
    AttendToPrompts(context, s, w, prompts, args, batch);
  }
}

}  // namespace outrider::cuda
