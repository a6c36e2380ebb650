#include "outrider/attention/mla_attention.h"

#include <array>

#include "outrider/attention/absorbed_form.h"
#include "outrider/attention/expanded_form.h"
#include "outrider/attention/per_head_form.h"

namespace outrider {

namespace {

/// kv [rows, L + R]: the latent projection, not yet normalised nor rotated; it may be changed.
void WriteEntries(const Compute& compute, const MlaShape& s, const MlaWeights& w,
                  const BatchLayout& layout, KvCacheForm form, const RotaryRows& rotary,
                  LayerCache cache, MatrixView<float> kv) {
  if (form == KvCacheForm::kHeads) {
    WritePerHeadEntries(compute, s, w, layout, rotary, cache, kv);
    return;
  }
  compute.kernels.write_latent(compute.pool, kv, w.kv_a_norm, s.norm_eps, rotary,
                               layout.slot_mapping().data(), cache);
}

/// q [rows, heads * (P + R)], rotated.
MatrixView<float> ProjectQueriesAndWriteCache(const Compute& compute, const MlaShape& s,
                                              const MlaWeights& w, const BatchLayout& layout,
                                              KvCacheForm form, const RotaryRows& rotary,
                                              LayerCache cache, MatrixView<const float> x) {
  const int64_t rows = x.rows;
  const int32_t head = s.nope + s.rope;
  const MatrixView<float> kv = compute.scratch.Matrix(rows, s.latent + s.rope);
  const MatrixView<float> q = compute.scratch.Matrix(rows, int64_t{s.heads} * head);
  const MatMulJob kv_job{.x = x, .w = &w.kv_a, .y = kv};
  if (s.q_lora > 0) {
    const MatrixView<float> q_latent = compute.scratch.Matrix(rows, s.q_lora);
    compute.kernels.matmul(compute.pool,
                           std::array{MatMulJob{.x = x, .w = &w.q_a, .y = q_latent}, kv_job},
                           compute.operand_dtype);
    compute.kernels.rms_norm(compute.pool, q_latent, w.q_a_norm, s.norm_eps, q_latent);
    compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = q_latent, .w = &w.q_b, .y = q}},
                           compute.operand_dtype);
  } else {
    compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = x, .w = &w.q_b, .y = q}, kv_job},
                           compute.operand_dtype);
  }
  compute.kernels.rotate(compute.pool, q, s.heads, head, s.nope, rotary);
  WriteEntries(compute, s, w, layout, form, rotary, cache, kv);
  return q;
}

}  // namespace

void MlaForward(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                const BatchLayout& layout, const AttentionPlan& plan, const RotaryRows& rotary,
                LayerCache cache, MatrixView<const float> x, MatrixView<float> residual) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> q = ProjectQueriesAndWriteCache(compute, shape, weights, layout,
                                                          plan.cache_form(), rotary, cache, x);
  const MatrixView<float> out = compute.scratch.Matrix(x.rows, int64_t{shape.heads} * shape.value);
  if (!plan.per_head().empty()) PerHeadForm(compute, shape, plan, cache, q, out);
  if (!plan.decode_runs().empty()) {
    AbsorbedForm(compute, shape, weights, plan, cache, q, out);
  }
  if (!plan.prompts().empty() || !plan.left_over().empty()) {
    ExpandedForm(compute, shape, weights, plan.prompts(), plan.left_over(), cache, q, out);
  }
  compute.kernels.matmul(
      compute.pool,
      std::array{MatMulJob{.x = out, .w = &weights.o, .y = residual, .accumulate = true}},
      compute.operand_dtype);
}

void WriteMlaEntries(const Compute& compute, const MlaShape& s, const MlaWeights& w,
                     const BatchLayout& layout, KvCacheForm form, const RotaryRows& rotary,
                     LayerCache cache, MatrixView<const float> x) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> kv = compute.scratch.Matrix(x.rows, s.latent + s.rope);
  compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = x, .w = &w.kv_a, .y = kv}},
                         compute.operand_dtype);
  WriteEntries(compute, s, w, layout, form, rotary, cache, kv);
}

}  // namespace outrider
