#include "outrider/kernels/argument_checks.h"

#include "outrider/base/error.h"

namespace outrider {

namespace {

void CheckCache(const LayerCache& cache) {
  OUTRIDER_CHECK(cache.dtype == DType::kF32 || cache.dtype == DType::kBF16,
                 "the cache holds float32 or bfloat16, not {}", DTypeName(cache.dtype));
  OUTRIDER_CHECK(cache.block_size > 0 && cache.width > 0);
  OUTRIDER_CHECK(cache.block_stride >= int64_t{cache.block_size} * cache.width);
}

void CheckSpans(std::span<const AttentionSpan> requests, int64_t q_rows, int64_t out_rows) {
  for (const AttentionSpan& span : requests) {
    OUTRIDER_CHECK(span.first_row >= 0 && span.query_length >= 0 && span.context_length >= 0);
    OUTRIDER_CHECK(int64_t{span.first_row} + span.query_length <= q_rows);
    OUTRIDER_CHECK(int64_t{span.first_row} + span.query_length <= out_rows);
  }
}

}  // namespace

void CheckMatMul(std::span<const MatMulJob> jobs, DType operand_dtype) {
  OUTRIDER_CHECK(operand_dtype == DType::kF32 || operand_dtype == DType::kBF16);
  for (const MatMulJob& job : jobs) {
    OUTRIDER_CHECK(job.w != nullptr);
    PanelBytes(job.w->format.dtype, job.w->cols);  // checks both
    OUTRIDER_CHECK(job.x.cols == job.w->cols, "x has {} columns, the weight {}", job.x.cols,
                   job.w->cols);
    OUTRIDER_CHECK(job.y.cols == job.w->rows, "y has {} columns, the weight {} rows", job.y.cols,
                   job.w->rows);
    OUTRIDER_CHECK(job.x_rows != nullptr || job.x.rows == job.y.rows || job.y.rows == 0,
                   "{} rows in, {} rows out", job.x.rows, job.y.rows);
  }
}

void CheckRotary(const RotaryRows& rotary, int64_t rows) {
  OUTRIDER_CHECK(rotary.cos.rows >= rows && rotary.sin.rows >= rows);
  OUTRIDER_CHECK(rotary.cos.cols == rotary.sin.cols);
}

void CheckWriteLatent(MatrixView<const float> kv, const RotaryRows& rotary,
                      const LayerCache& cache) {
  CheckCache(cache);
  CheckRotary(rotary, kv.rows);
  OUTRIDER_CHECK(kv.cols == cache.width && kv.cols > 2 * rotary.cos.cols);
}

void CheckGatherLatent(const LayerCache& cache, MatrixView<float> latent, MatrixView<float> rope) {
  CheckCache(cache);
  OUTRIDER_CHECK(latent.rows == rope.rows && latent.cols + rope.cols == cache.width);
}

void CheckWriteEntries(MatrixView<const float> entries, const LayerCache& cache) {
  CheckCache(cache);
  OUTRIDER_CHECK(entries.cols == cache.width, "entries have {} columns, the cache {}", entries.cols,
                 cache.width);
}

void CheckAbsorbed(const AbsorbedAttentionArgs& args) {
  CheckCache(args.cache);
  OUTRIDER_CHECK(args.latent > 0 && args.rope >= 0 && args.latent + args.rope == args.cache.width);
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * args.cache.width);
  OUTRIDER_CHECK(args.out.cols == int64_t{args.heads} * args.latent);
  OUTRIDER_CHECK(args.split > 0);
  CheckSpans(args.requests, args.q.rows, args.out.rows);
}

void CheckPerHead(const PerHeadAttentionArgs& args) {
  CheckCache(args.cache);
  const int64_t heads = args.heads;
  OUTRIDER_CHECK(heads > 0 && args.nope > 0 && args.rope >= 0 && args.value > 0);
  OUTRIDER_CHECK(args.kv_heads > 0 && heads % args.kv_heads == 0 && args.window >= 0);
  OUTRIDER_CHECK(args.cache.width == int64_t{args.kv_heads} * (args.nope + args.value) + args.rope);
  OUTRIDER_CHECK(args.q.cols == heads * (args.nope + args.rope));
  OUTRIDER_CHECK(args.out.cols == heads * args.value);
  CheckSpans(args.requests, args.q.rows, args.out.rows);
}

void CheckListed(const ListedAttentionArgs& args) {
  OUTRIDER_CHECK(args.dtype == DType::kF32 || args.dtype == DType::kBF16,
                 "entries are float32 or bfloat16, not {}", DTypeName(args.dtype));
  OUTRIDER_CHECK(args.heads > 0 && args.width > 0 && args.most_entries > 0);
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * args.width);
  OUTRIDER_CHECK(args.value_width > 0 && args.value_width <= args.width);
  OUTRIDER_CHECK(args.out.cols == int64_t{args.heads} * args.value_width &&
                 args.out.rows == args.q.rows);
}

void CheckExpanded(const ExpandedAttentionArgs& args) {
  const int64_t heads = args.heads;
  OUTRIDER_CHECK(args.q.cols == heads * (args.nope + args.rope));
  OUTRIDER_CHECK(args.kv.cols == heads * (args.nope + args.value));
  OUTRIDER_CHECK(args.k_rope.cols == args.rope);
  OUTRIDER_CHECK(args.out.cols == heads * args.value);
  OUTRIDER_CHECK(args.running_max.cols == heads && args.running_sum.cols == heads);
  for (const ExpandedBlock& block : args.blocks) {
    OUTRIDER_CHECK(block.first_key >= 0 && block.first_key % kExpandedBlock == 0);
    OUTRIDER_CHECK(block.num_keys >= 1 && block.num_keys <= kExpandedBlock);
    OUTRIDER_CHECK(block.kv_row >= 0 && block.kv_row + block.num_keys <= args.kv.rows);
    OUTRIDER_CHECK(block.kv_row + block.num_keys <= args.k_rope.rows);
    const int64_t end_row = int64_t{block.request.first_row} + block.request.query_length;
    OUTRIDER_CHECK(block.request.first_row >= 0 && end_row <= args.q.rows);
    OUTRIDER_CHECK(end_row <= args.out.rows && end_row <= args.running_max.rows &&
                   end_row <= args.running_sum.rows);
  }
}

}  // namespace outrider
