// CpuOps: hyper-connections, in plain float32. Rows are independent.
#include <algorithm>
#include <array>
#include <cmath>

#include "outrider/base/rounded_exp.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/lane_sums.h"

namespace outrider::cpu {

namespace {

/// What the sums of a row are multiplied by: 1 / sqrt(mean of x² + eps).
float InverseNorm(const float* x, int64_t n, float eps) {
  return 1.0F / std::sqrt(LaneDot(x, x, n) / static_cast<float>(n) + eps);
}

/// to = sum over j of weights[j] * streams[j], each [n].
void MixStreams(const float* weights, int32_t count, const float* streams, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = weights[0] * streams[i];
  for (int32_t j = 1; j < count; ++j) {
    for (int64_t i = 0; i < n; ++i) to[i] += weights[j] * streams[j * n + i];
  }
}

/// Divides the columns of c [n, n] by their sums + eps, or the rows.
void NormaliseSums(float* c, int32_t n, float eps, bool columns) {
  const int32_t along = columns ? n : 1;
  const int32_t across = columns ? 1 : n;
  for (int32_t i = 0; i < n; ++i) {
    float sum = eps;
    for (int32_t j = 0; j < n; ++j) sum += c[i * across + j * along];
    for (int32_t j = 0; j < n; ++j) c[i * across + j * along] /= sum;
  }
}

/// Sinkhorn's normalisation of exp(c), rows first by a softmax.
void Sinkhorn(const HyperShape& shape, float* c) {
  const int32_t n = shape.streams;
  for (int32_t j = 0; j < n; ++j) {
    float* row = c + j * n;
    float max = row[0];
    for (int32_t k = 1; k < n; ++k) max = row[k] > max ? row[k] : max;
    float sum = 0;
    for (int32_t k = 0; k < n; ++k) sum += row[k] = RoundedExp(row[k] - max);
    for (int32_t k = 0; k < n; ++k) row[k] = row[k] / sum + shape.eps;
  }
  NormaliseSums(c, n, shape.eps, /*columns=*/true);
  for (int32_t i = 1; i < shape.iterations; ++i) {
    NormaliseSums(c, n, shape.eps, /*columns=*/false);
    NormaliseSums(c, n, shape.eps, /*columns=*/true);
  }
}

}  // namespace

void CpuOps::HyperMix(const Context& context, const HyperShape& shape,
                      const HyperMixArgs& args) const {
  if (args.add.y.rows > 0) HyperAdd(context, shape, args.add, args.streams);
  const int32_t n = shape.streams;
  const bool mixes = args.weights.cols > 0;
  const Scratch::Frame frame(context.arena);
  const MatrixView<float> streams = args.streams.floats();
  const MatrixView<float> sums = context.arena.Matrix(streams.rows, args.fn->rows);
  Multiply(context,
           std::array{Product{.x = args.streams, .w = args.fn, .y = sums, .float32 = true}});
  const MatrixView<float> mixture = args.mixture.floats();
  OUTRIDER_CHECK(streams.cols == n * mixture.cols && sums.cols == (mixes ? (2 + n) * n : n));
  OUTRIDER_CHECK(!mixes || (args.weights.cols == (1 + n) * n && args.weights.rows == streams.rows));
  const MatrixView<float> pre_weights = context.arena.Matrix(streams.rows, n);
  context.pool->ParallelFor(streams.rows, [&](int64_t r, int /*thread*/) {
    const float* x = streams.row(r);
    const float inverse = InverseNorm(x, streams.cols, shape.norm_eps);
    const float* m = sums.row(r);
    float* pre = pre_weights.row(r);
    for (int32_t i = 0; i < n; ++i) {
      pre[i] = Sigmoid(m[i] * inverse * args.scale[0] + args.base[i]) + shape.eps;
    }
    MixStreams(pre, n, x, mixture.cols, mixture.row(r));
    if (!mixes) return;
    float* post = args.weights.floats().row(r);
    float* comb = post + n;
    for (int32_t i = 0; i < n; ++i) {
      post[i] = 2 * Sigmoid(m[n + i] * inverse * args.scale[1] + args.base[n + i]);
    }
    for (int32_t i = 0; i < n * n; ++i) {
      comb[i] = m[2 * n + i] * inverse * args.scale[2] + args.base[2 * n + i];
    }
    Sinkhorn(shape, comb);
  });
  if (args.norm != nullptr) Norm(context, args.mixture, args.norm, shape.norm_eps, args.mixture);
}

void CpuOps::HyperAdd(const Context& context, const HyperShape& shape, const HyperAddArgs& args,
                      Tensor stream_rows) const {
  const int32_t n = shape.streams;
  if (args.experts != nullptr) {
    SetZero(context, args.y);
    CombineExperts(context, *args.experts->weights, *args.experts->routing, args.experts->outputs,
                   args.y, {});
  }
  const MatrixView<float> weights = args.weights.floats();
  const MatrixView<float> y = args.y.floats();
  const MatrixView<float> streams = stream_rows.floats();
  OUTRIDER_CHECK(streams.cols == n * y.cols && weights.cols == (1 + n) * n);
  const int64_t width = y.cols;
  const Scratch::Frame frame(context.arena);
  const MatrixView<float> before = context.arena.Matrix(streams.rows, streams.cols);
  context.pool->ParallelFor(streams.rows, [&](int64_t r, int /*thread*/) {
    const float* post = weights.row(r);
    const float* comb = post + n;
    float* old = before.row(r);
    std::copy_n(streams.row(r), streams.cols, old);
    for (int32_t k = 0; k < n; ++k) {
      float* to = streams.row(r) + k * width;
      for (int64_t i = 0; i < width; ++i) to[i] = post[k] * y.row(r)[i];
      for (int32_t j = 0; j < n; ++j) {
        const float weight = comb[j * n + k];
        for (int64_t i = 0; i < width; ++i) to[i] += weight * old[j * width + i];
      }
    }
  });
}

void CpuOps::HyperMean(const Context& context, const HyperShape& shape, Tensor stream_rows,
                       Tensor mean_rows) const {
  const int32_t n = shape.streams;
  const MatrixView<float> streams = stream_rows.floats();
  const MatrixView<float> mean = mean_rows.floats();
  OUTRIDER_CHECK(streams.cols == n * mean.cols && streams.rows == mean.rows);
  const Scratch::Frame frame(context.arena);
  auto* weights = context.arena.Take<float>(n);
  std::fill_n(weights, n, 1.0F / static_cast<float>(n));
  context.pool->ParallelFor(streams.rows, [&](int64_t r, int /*thread*/) {
    MixStreams(weights, n, streams.row(r), mean.cols, mean.row(r));
  });
}

}  // namespace outrider::cpu
