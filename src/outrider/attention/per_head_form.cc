#include "outrider/attention/per_head_form.h"

#include <algorithm>

#include "outrider/attention/kernel_arguments.h"

namespace outrider {

void WritePerHeadEntries(const Compute& compute, const MlaShape& s, const MlaWeights& w,
                         const BatchLayout& layout, const RotaryRows& rotary, LayerCache cache,
                         MatrixView<float> kv) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> latent = kv.Columns(0, s.latent);
  compute.kernels.rms_norm(compute.pool, latent, w.kv_a_norm, s.norm_eps, latent);
  const int32_t rotated = s.heads * s.nope;
  const int32_t values = rotated + s.rope;
  const MatrixView<float> entries = compute.scratch.Matrix(kv.rows, cache.width);
  ExpandLatents(compute, s, w, latent, {.key_step = s.nope, .value = values, .value_step = s.value},
                entries);
  for (int64_t r = 0; r < kv.rows; ++r) {
    std::copy_n(kv.row(r) + s.latent, s.rope, entries.row(r) + rotated);
  }
  compute.kernels.rotate(compute.pool, entries, 1, cache.width, rotated, rotary);
  compute.kernels.write_entries(compute.pool, entries, layout.slot_mapping().data(), cache);
}

void PerHeadForm(const Compute& compute, const MlaShape& s, const AttentionPlan& plan,
                 LayerCache cache, MatrixView<const float> q, MatrixView<float> out) {
  const Scratch::Frame frame(compute.scratch);
  compute.kernels.per_head_attention(compute.pool,
                                     {.q = q,
                                      .heads = s.heads,
                                      .kv_heads = s.heads,
                                      .nope = s.nope,
                                      .rope = s.rope,
                                      .value = s.value,
                                      .scale = s.softmax_scale,
                                      .cache = cache,
                                      .requests = KernelSpans(plan.per_head(), 0, compute.scratch),
                                      .out = out});
}

}  // namespace outrider
