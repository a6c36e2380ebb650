#include "outrider/attention/mla_attention.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace outrider {

namespace {

// Expanded keys and values are made in rounds of at most this many bytes.
constexpr int64_t kExpansionBytes = int64_t{16} << 20;

AttentionSpan SpanOf(const RequestRows& request) {
  return {request.first_row, request.query_length, request.context_length, request.block_table};
}

/// q [rows, heads * (P + R)], rotated.
MatrixView<float> ProjectQueriesAndWriteCache(const Compute& compute, const MlaShape& s,
                                              const MlaWeights& w, const BatchLayout& layout,
                                              const RotaryRows& rotary, LatentCache cache,
                                              MatrixView<const float> x) {
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
  compute.kernels.write_latent(compute.pool, kv, w.kv_a_norm, s.norm_eps, rotary,
                               layout.slot_mapping().data(), cache);
  return q;
}

/// The decode rows [0, num_decode_rows): absorb W_UK into the query, attend to latents, then W_UV.
void AbsorbedForm(const Compute& compute, const MlaShape& s, const MlaWeights& w,
                  const BatchLayout& layout, LatentCache cache, MatrixView<const float> q,
                  MatrixView<float> out) {
  const int64_t rows = layout.num_decode_rows();
  const int32_t head = s.nope + s.rope;
  const int32_t width = s.latent + s.rope;
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> absorbed = compute.scratch.Matrix(rows, int64_t{s.heads} * width);
  const MatrixView<float> latent_out = compute.scratch.Matrix(rows, int64_t{s.heads} * s.latent);
  auto* jobs = compute.scratch.Take<MatMulJob>(s.heads);
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = q.Rows(0, rows).Columns(int64_t{h} * head, s.nope),
               .w = &w.key_up_t[static_cast<size_t>(h)],
               .y = absorbed.Columns(int64_t{h} * width, s.latent)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(s.heads)}, compute.operand_dtype);
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t h = 0; h < s.heads; ++h) {
      std::memcpy(absorbed.row(r) + int64_t{h} * width + s.latent,
                  q.row(r) + int64_t{h} * head + s.nope,
                  static_cast<size_t>(s.rope) * sizeof(float));
    }
  }
  const auto num_requests = static_cast<size_t>(layout.num_decode_requests());
  auto* spans = compute.scratch.Take<AttentionSpan>(layout.num_decode_requests());
  for (size_t i = 0; i < num_requests; ++i) spans[i] = SpanOf(layout.requests()[i]);
  compute.kernels.absorbed_attention(compute.pool, {.q = absorbed,
                                                    .heads = s.heads,
                                                    .latent = s.latent,
                                                    .rope = s.rope,
                                                    .scale = s.softmax_scale,
                                                    .cache = cache,
                                                    .requests = {spans, num_requests},
                                                    .out = latent_out});
  for (int32_t h = 0; h < s.heads; ++h) {
    jobs[h] = {.x = latent_out.Columns(int64_t{h} * s.latent, s.latent),
               .w = &w.value_up[static_cast<size_t>(h)],
               .y = out.Rows(0, rows).Columns(int64_t{h} * s.value, s.value)};
  }
  compute.kernels.matmul(compute.pool, {jobs, static_cast<size_t>(s.heads)}, compute.operand_dtype);
}

/// The prompt rows of a step. Keys and values of a whole context are expanded from the cache in
/// rounds of blocks; softmax state is carried from round to round.
class ExpandedForm {
 public:
  ExpandedForm(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
               LatentCache cache, MatrixView<const float> q, MatrixView<float> out)
      : compute_(compute), s_(shape), w_(weights), cache_(cache), q_(q), out_(out) {
    const int64_t row_bytes = int64_t{s_.heads} * (s_.nope + s_.value) * int64_t{sizeof(float)};
    max_blocks_ = std::max<int64_t>(1, kExpansionBytes / (row_bytes * kExpandedBlock));
    const int64_t keys = max_blocks_ * kExpandedBlock;
    latent_ = compute.scratch.Matrix(keys, s_.latent);
    k_rope_ = compute.scratch.Matrix(keys, s_.rope);
    kv_ = compute.scratch.Matrix(keys, int64_t{s_.heads} * (s_.nope + s_.value));
    running_max_ = compute.scratch.Matrix(q.rows, s_.heads);
    running_sum_ = compute.scratch.Matrix(q.rows, s_.heads);
    blocks_ = compute.scratch.Take<ExpandedBlock>(max_blocks_);
    jobs_ = compute.scratch.Take<MatMulJob>(int64_t{2} * s_.heads);
  }

  void Run(std::span<const RequestRows> requests) {
    for (const RequestRows& request : requests) {
      const int32_t length = request.context_length + request.query_length;
      for (int32_t key = 0; key < length; key += kExpandedBlock) {
        AddBlock(request, key, std::min(kExpandedBlock, length - key));
      }
    }
    Flush();
    for (const RequestRows& request : requests) Normalise(request);
  }

 private:
  void AddBlock(const RequestRows& request, int32_t first_key, int32_t num_keys) {
    if (num_blocks_ == max_blocks_) Flush();
    compute_.kernels.gather_latent(compute_.pool, cache_, request.block_table, first_key,
                                   latent_.Rows(num_keys_, num_keys),
                                   k_rope_.Rows(num_keys_, num_keys));
    blocks_[num_blocks_++] = {SpanOf(request), first_key, num_keys, num_keys_};
    num_keys_ += num_keys;
  }

  void Flush() {
    if (num_blocks_ == 0) return;
    const MatrixView<const float> latent = latent_.Rows(0, num_keys_);
    const MatrixView<float> kv = kv_.Rows(0, num_keys_);
    const int32_t head = s_.nope + s_.value;
    for (int32_t h = 0; h < s_.heads; ++h) {
      jobs_[2 * h] = {.x = latent,
                      .w = &w_.key_up[static_cast<size_t>(h)],
                      .y = kv.Columns(int64_t{h} * head, s_.nope)};
      jobs_[2 * h + 1] = {.x = latent,
                          .w = &w_.value_up[static_cast<size_t>(h)],
                          .y = kv.Columns(int64_t{h} * head + s_.nope, s_.value)};
    }
    compute_.kernels.matmul(compute_.pool, {jobs_, static_cast<size_t>(2 * s_.heads)},
                            compute_.operand_dtype);
    compute_.kernels.expanded_attention(compute_.pool,
                                        {.q = q_,
                                         .heads = s_.heads,
                                         .nope = s_.nope,
                                         .rope = s_.rope,
                                         .value = s_.value,
                                         .scale = s_.softmax_scale,
                                         .kv = kv,
                                         .k_rope = k_rope_.Rows(0, num_keys_),
                                         .blocks = {blocks_, static_cast<size_t>(num_blocks_)},
                                         .out = out_,
                                         .running_max = running_max_,
                                         .running_sum = running_sum_});
    num_blocks_ = 0;
    num_keys_ = 0;
  }

  void Normalise(const RequestRows& request) const {
    for (int64_t r = request.first_row; r < request.first_row + request.query_length; ++r) {
      for (int32_t h = 0; h < s_.heads; ++h) {
        const float factor = 1.0F / running_sum_.row(r)[h];
        float* o = out_.row(r) + int64_t{h} * s_.value;
        for (int32_t i = 0; i < s_.value; ++i) o[i] *= factor;
      }
    }
  }

  const Compute& compute_;
  const MlaShape& s_;
  const MlaWeights& w_;
  LatentCache cache_;
  MatrixView<const float> q_;
  MatrixView<float> out_;
  int64_t max_blocks_ = 0;
  int64_t num_blocks_ = 0;
  int64_t num_keys_ = 0;
  MatrixView<float> latent_;  // [keys, L]
  MatrixView<float> k_rope_;  // [keys, R]
  MatrixView<float> kv_;      // [keys, heads * (P + V)]
  MatrixView<float> running_max_;
  MatrixView<float> running_sum_;
  ExpandedBlock* blocks_ = nullptr;
  MatMulJob* jobs_ = nullptr;
};

}  // namespace

void MlaForward(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                const BatchLayout& layout, const RotaryRows& rotary, LatentCache cache,
                MatrixView<const float> x, MatrixView<float> residual) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> q =
      ProjectQueriesAndWriteCache(compute, shape, weights, layout, rotary, cache, x);
  const MatrixView<float> out = compute.scratch.Matrix(x.rows, int64_t{shape.heads} * shape.value);
  if (layout.num_decode_requests() > 0) {
    AbsorbedForm(compute, shape, weights, layout, cache, q, out);
  }
  if (layout.num_decode_requests() < layout.num_requests()) {
    ExpandedForm(compute, shape, weights, cache, q, out)
        .Run(layout.requests().subspan(static_cast<size_t>(layout.num_decode_requests())));
  }
  compute.kernels.matmul(
      compute.pool,
      std::array{MatMulJob{.x = out, .w = &weights.o, .y = residual, .accumulate = true}},
      compute.operand_dtype);
}

}  // namespace outrider
