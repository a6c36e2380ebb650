#include "outrider/attention/kernel_arguments.h"

namespace outrider {

std::span<const AttentionSpan> KernelSpans(std::span<const RequestRows> requests, int32_t first_row,
                                           Scratch& scratch) {
  auto* spans = scratch.Take<AttentionSpan>(static_cast<int64_t>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRows& request = requests[i];
    spans[i] = {request.first_row - first_row, request.query_length, request.context_length,
                request.block_table};
  }
  return {spans, requests.size()};
}

void ExpandLatents(const Compute& compute, const MlaShape& s, const MlaWeights& w,
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

}  // namespace outrider
