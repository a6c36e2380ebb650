// CpuOps: multi-head latent attention. The absorbed (MQA) form puts W_UK into the query, all heads
// attend to the latent cache, and W_UV is applied to what they found (DeepSeek-V2, arXiv:2405.04434
// §2.1.2). With per-head entries both are applied once per token, when its entry is written.
#include <algorithm>
#include <cstring>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/decode_kernels.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/cpu/latent_products.h"

namespace outrider::cpu {

namespace {

RotaryRows RowsOf(const Rotary& rotary) {
  return {rotary.cos.floats(), rotary.sin.floats(), rotary.interleaved};
}

}  // namespace

void ExpandLatents(const Compute& compute, const MlaShape& s, const PackedKvUp& w,
                   MatrixView<const float> latents, const ExpandedColumns& columns,
                   MatrixView<float> out) {
  const Scratch::Frame frame(compute.scratch);
  const int64_t num_jobs = int64_t{2} * s.heads;
  auto* jobs = compute.scratch.Take<MatMulJob>(num_jobs);
  for (int64_t h = 0; h < s.heads; ++h) {
    jobs[2 * h] = {.x = latents,
                   .w = &w.key_up[static_cast<size_t>(h)],
                   .y = out.Columns(h * columns.key_step, s.nope)};
    jobs[2 * h + 1] = {.x = latents,
                       .w = &w.value_up[static_cast<size_t>(h)],
                       .y = out.Columns(columns.value + h * columns.value_step, s.value)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(num_jobs)},
                         compute.operand_dtype);
}

void CpuOps::Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
                    const Rotary& rotary) const {
  kernels_.rotate(*context.pool, x.floats(), heads, static_cast<int32_t>(x.cols / heads), offset,
                  RowsOf(rotary));
}

void CpuOps::NormQueries(const Context& context, const MlaShape& s, const EntryArgs& args) const {
  if (args.q_norm != nullptr) Norm(context, args.q_down, args.q_norm, s.norm_eps, args.q_latent);
}

void CpuOps::WriteLatentEntries(const Context& context, const MlaShape& s, const StepInputs& inputs,
                                const EntryArgs& args) const {
  NormQueries(context, s, args);
  if (HoldsCodes(args.cache)) {
    const MatrixView<float> latent = args.kv.floats().Columns(0, s.latent);
    kernels_.rms_norm(*context.pool, latent, args.norm, s.norm_eps, latent);
    Rotate(context, args.kv, 1, s.latent, args.rotary);
    WriteEntries(context, inputs, args.kv, args.cache);
    return;
  }
  kernels_.write_latent(*context.pool, args.kv.floats(), args.norm, s.norm_eps, RowsOf(args.rotary),
                        Cast(inputs).slots(args.cache.group), args.cache);
}

void CpuOps::WritePerHeadEntries(const Context& context, const MlaShape& s, const KvUpWeight& w,
                                 const StepInputs& inputs, const EntryArgs& args) const {
  NormQueries(context, s, args);
  const Compute compute = ComputeOf(context);
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> kv = args.kv.floats();
  const MatrixView<float> latent = kv.Columns(0, s.latent);
  kernels_.rms_norm(compute.pool, latent, args.norm, s.norm_eps, latent);
  const int32_t rotated = s.heads * s.nope;
  const int32_t values = rotated + s.rope;
  const MatrixView<float> entries = compute.scratch.Matrix(kv.rows, args.cache.width);
  ExpandLatents(compute, s, Packed(w), latent,
                {.key_step = s.nope, .value = values, .value_step = s.value}, entries);
  for (int64_t r = 0; r < kv.rows; ++r) {
    std::copy_n(kv.row(r) + s.latent, s.rope, entries.row(r) + rotated);
  }
  kernels_.rotate(compute.pool, entries, 1, args.cache.width, rotated, RowsOf(args.rotary));
  kernels_.write_entries(compute.pool, entries, Cast(inputs).slots(args.cache.group), args.cache);
}

void CpuOps::Absorb(const Context& context, const MlaShape& s, const KvUpWeight& w,
                    const Rotary& rotary, Tensor q, Tensor absorbed) const {
  const Scratch::Frame frame(context.arena);
  const MatrixView<float> from = q.floats();
  const MatrixView<float> to = absorbed.floats();
  const int64_t head = s.nope + s.rope;
  const int64_t width = s.latent + s.rope;
  auto* jobs = context.arena.Take<MatMulJob>(s.heads);
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = from.Columns(h * head, s.nope),
               .w = &Packed(w).key_up_t[static_cast<size_t>(h)],
               .y = to.Columns(h * width, s.latent)};
  }
  kernels_.matmul(*context.pool, {jobs, static_cast<size_t>(s.heads)}, context.operand_dtype);
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int32_t h = 0; h < s.heads; ++h) {
      std::memcpy(to.row(r) + h * width + s.latent, from.row(r) + h * head + s.nope,
                  static_cast<size_t>(s.rope) * sizeof(float));
    }
  }
  Rotate(context, absorbed, s.heads, s.latent, rotary);
}

void CpuOps::Unabsorb(const Context& context, const MlaShape& s, const KvUpWeight& w, Tensor latent,
                      Tensor out) const {
  const Scratch::Frame frame(context.arena);
  auto* jobs = context.arena.Take<MatMulJob>(s.heads);
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = latent.floats().Columns(int64_t{h} * s.latent, s.latent),
               .w = &Packed(w).value_up[static_cast<size_t>(h)],
               .y = out.floats().Columns(int64_t{h} * s.value, s.value)};
  }
  kernels_.matmul(*context.pool, {jobs, static_cast<size_t>(s.heads)}, context.operand_dtype);
}

void CpuOps::DecodeAttention(const Context& context, const MlaShape& s, const StepInputs& inputs,
                             const AttentionArgs& args) const {
  const CpuStepInputs& step = Cast(inputs);
  const AbsorbedAttentionArgs kernel_args = {.q = args.q.floats(),
                                             .heads = s.heads,
                                             .model_heads = s.heads * context.place().ranks,
                                             .latent = s.latent,
                                             .rope = s.rope,
                                             .scale = s.softmax_scale,
                                             .cache = args.cache,
                                             .requests = step.decode(args.cache.group),
                                             .out = args.out.floats()};
  if (step.uniform_length() == 0) {
    kernels_.absorbed_attention(*context.pool, kernel_args);
  } else if (step.pads()) {
    PaddedDecodeAttention(ComputeOf(context), kernel_args, step.uniform_length());
  } else {
    UniformDecodeAttention(ComputeOf(context), kernel_args, step.uniform_length());
  }
}

}  // namespace outrider::cpu
