#include "outrider/ops/cpu/decode_kernels.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider::cpu {

void UniformDecodeAttention(const Compute& compute, const AbsorbedAttentionArgs& args,
                            int32_t query_length) {
  const Scratch::Frame frame(compute.scratch);
  const auto num_requests = static_cast<int64_t>(args.requests.size());
  auto* spans = compute.scratch.Take<AttentionSpan>(num_requests);
  size_t num_spans = 0;
  for (int64_t i = 0; i < num_requests; ++i) {
    AttentionSpan span = args.requests[static_cast<size_t>(i)];
    OUTRIDER_CHECK(span.query_length == query_length && span.first_row == i * query_length);
    const int32_t without_keys = std::clamp(-span.context_length, 0, query_length);
    for (int32_t j = 0; j < without_keys; ++j) {
      std::fill_n(args.out.row(span.first_row + j), args.out.cols, 0.0F);
    }
    if (without_keys == query_length) continue;
    span.first_row += without_keys;
    span.query_length -= without_keys;
    span.context_length += without_keys;
    spans[num_spans++] = span;
  }
  AbsorbedAttentionArgs ragged = args;
  ragged.requests = {spans, num_spans};
  compute.kernels.absorbed_attention(compute.pool, ragged);
}

void PaddedDecodeAttention(const Compute& compute, const AbsorbedAttentionArgs& args,
                           int32_t query_length) {
  const Scratch::Frame frame(compute.scratch);
  const auto num_requests = static_cast<int64_t>(args.requests.size());
  const MatrixView<float> q = compute.scratch.Matrix(num_requests * query_length, args.q.cols);
  const MatrixView<float> out = compute.scratch.Matrix(q.rows, args.out.cols);
  auto* spans = compute.scratch.Take<AttentionSpan>(num_requests);
  for (int64_t i = 0; i < num_requests; ++i) {
    const AttentionSpan& span = args.requests[static_cast<size_t>(i)];
    const int32_t padding = query_length - span.query_length;
    OUTRIDER_CHECK(padding >= 0);
    const auto first = static_cast<int32_t>(i * query_length);
    spans[i] = {first, query_length, span.context_length - padding, span.block_table};
    for (int32_t j = 0; j < padding; ++j) std::fill_n(q.row(first + j), q.cols, 0.0F);
    for (int32_t j = 0; j < span.query_length; ++j) {
      std::copy_n(args.q.row(span.first_row + j), q.cols, q.row(first + padding + j));
    }
  }
  AbsorbedAttentionArgs uniform = args;
  uniform.q = q;
  uniform.out = out;
  uniform.requests = {spans, args.requests.size()};
  UniformDecodeAttention(compute, uniform, query_length);
  for (int64_t i = 0; i < num_requests; ++i) {
    const AttentionSpan& span = args.requests[static_cast<size_t>(i)];
    for (int32_t j = 0; j < span.query_length; ++j) {
      std::copy_n(out.row((i + 1) * query_length - span.query_length + j), out.cols,
                  args.out.row(span.first_row + j));
    }
  }
}

}  // namespace outrider::cpu
