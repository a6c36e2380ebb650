#include "outrider/attention/per_head_form.h"

#include <algorithm>

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
  auto* jobs = compute.scratch.Take<MatMulJob>(int64_t{2} * s.heads);
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[2 * h] = {.x = latent,
                   .w = &w.key_up[static_cast<size_t>(h)],
                   .y = entries.Columns(int64_t{h} * s.nope, s.nope)};
    jobs[2 * h + 1] = {.x = latent,
                       .w = &w.value_up[static_cast<size_t>(h)],
                       .y = entries.Columns(values + int64_t{h} * s.value, s.value)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(2 * s.heads)},
                         compute.operand_dtype);
  for (int64_t r = 0; r < kv.rows; ++r) {
    std::copy_n(kv.row(r) + s.latent, s.rope, entries.row(r) + rotated);
  }
  compute.kernels.rotate(compute.pool, entries, 1, cache.width, rotated, rotary);
  compute.kernels.write_entries(compute.pool, entries, layout.slot_mapping().data(), cache);
}

void PerHeadForm(const Compute& compute, const MlaShape& s, const AttentionPlan& plan,
                 LayerCache cache, MatrixView<const float> q, MatrixView<float> out) {
  const Scratch::Frame frame(compute.scratch);
  const auto requests = plan.per_head();
  auto* spans = compute.scratch.Take<AttentionSpan>(static_cast<int64_t>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    spans[i] = {requests[i].first_row, requests[i].query_length, requests[i].context_length,
                requests[i].block_table};
  }
  compute.kernels.per_head_attention(compute.pool, {.q = q,
                                                    .heads = s.heads,
                                                    .nope = s.nope,
                                                    .rope = s.rope,
                                                    .value = s.value,
                                                    .scale = s.softmax_scale,
                                                    .cache = cache,
                                                    .requests = {spans, requests.size()},
                                                    .out = out});
}

}  // namespace outrider
