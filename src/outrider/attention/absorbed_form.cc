#include "outrider/attention/absorbed_form.h"

#include <cstring>

#include "outrider/attention/decode_kernels.h"
#include "outrider/attention/kernel_arguments.h"
#include "outrider/base/error.h"

namespace outrider {

namespace {

/// The decode kernel of the backend gets what it takes, and nothing else.
void RunDecodeKernel(const Compute& compute, const AttentionPlan& plan,
                     const AbsorbedAttentionArgs& args) {
  const DecodeKernel kernel = DecodeKernelOf(plan.backend());
  switch (kernel.lengths) {
    case QueryLengths::kRagged:
      compute.kernels.absorbed_attention(compute.pool, args);
      return;
    case QueryLengths::kUniform:
      if (kernel.policy == UniformPolicy::kPad) {
        PaddedDecodeAttention(compute, args, plan.query_length());
      } else {
        UniformDecodeAttention(compute, args, plan.query_length());
      }
      return;
    case QueryLengths::kSingle:
      UniformDecodeAttention(compute, args, 1);
      return;
  }
}

}  // namespace

void AbsorbedForm(const Compute& compute, const MlaShape& s, const MlaWeights& w,
                  const AttentionPlan& plan, LayerCache cache, MatrixView<const float> q,
                  MatrixView<float> out) {
  const int32_t first_row = plan.first_decode_row();
  const int32_t rows = plan.num_decode_rows();
  const int32_t head = s.nope + s.rope;
  const int32_t width = s.latent + s.rope;
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<const float> queries = q.Rows(first_row, rows);
  const MatrixView<float> absorbed = compute.scratch.Matrix(rows, int64_t{s.heads} * width);
  const MatrixView<float> latent_out = compute.scratch.Matrix(rows, int64_t{s.heads} * s.latent);
  auto* jobs = compute.scratch.Take<MatMulJob>(s.heads);
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = queries.Columns(int64_t{h} * head, s.nope),
               .w = &w.key_up_t[static_cast<size_t>(h)],
               .y = absorbed.Columns(int64_t{h} * width, s.latent)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(s.heads)}, compute.operand_dtype);
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t h = 0; h < s.heads; ++h) {
      std::memcpy(absorbed.row(r) + int64_t{h} * width + s.latent,
                  queries.row(r) + int64_t{h} * head + s.nope,
                  static_cast<size_t>(s.rope) * sizeof(float));
    }
  }
  RunDecodeKernel(compute, plan,
                  {.q = absorbed,
                   .heads = s.heads,
                   .latent = s.latent,
                   .rope = s.rope,
                   .scale = s.softmax_scale,
                   .cache = cache,
                   .requests = KernelSpans(plan.decode_runs(), first_row, compute.scratch),
                   .out = latent_out});
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = latent_out.Columns(int64_t{h} * s.latent, s.latent),
               .w = &w.value_up[static_cast<size_t>(h)],
               .y = out.Rows(first_row, rows).Columns(int64_t{h} * s.value, s.value)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(s.heads)}, compute.operand_dtype);
}

}  // namespace outrider
