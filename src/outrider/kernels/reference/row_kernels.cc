// The entries that work on one row at a time: norm, activation, rotation, sum of experts.

#include <cmath>

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * scale);
}

void RotateRow(float* x, const RotaryRows& rotary, int64_t row) {
  const int64_t half = rotary.cos.cols;
  const float* cos = rotary.cos.row(row);
  const float* sin = rotary.sin.row(row);
  for (int64_t i = 0; i < half; ++i) {
    float& a = rotary.interleaved ? x[2 * i] : x[i];
    float& b = rotary.interleaved ? x[2 * i + 1] : x[i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    b = a * sin[i] + b * cos[i];
    a = rotated_a;
  }
}

void RmsNorm(ThreadPool& pool, MatrixView<const float> x, const float* weight, float eps,
             MatrixView<float> y) {
  OUTRIDER_CHECK(x.rows == y.rows && x.cols == y.cols);
  pool.ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    RmsNormRow(x.row(r), weight, eps, x.cols, y.row(r));
  });
}

void SiluMul(ThreadPool& pool, MatrixView<const float> x, float limit, MatrixView<float> y) {
  OUTRIDER_CHECK(x.rows == y.rows && x.cols == 2 * y.cols);
  pool.ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    const float* gate = x.row(r);
    const float* up = gate + y.cols;
    float* out = y.row(r);
    for (int64_t i = 0; i < y.cols; ++i) {
      const float silu = gate[i] / (1.0f + std::exp(-gate[i]));
      // As std::min and std::clamp, but NaN goes through.
      const float cut = silu > limit ? limit : silu;
      const float clamped = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
      out[i] = cut * clamped;
    }
  });
}

void GateHeads(ThreadPool& pool, MatrixView<const float> gates, MatrixView<float> x) {
  OUTRIDER_CHECK(gates.rows == x.rows && gates.cols > 0 && x.cols % gates.cols == 0);
  const int64_t n = x.cols / gates.cols;
  pool.ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(r)[i] *= Sigmoid(gates.row(r)[i / n]);
  });
}

void Rotate(ThreadPool& pool, MatrixView<float> x, int32_t groups, int32_t group_stride,
            int32_t offset, const RotaryRows& rotary) {
  CheckRotary(rotary, x.rows);
  OUTRIDER_CHECK(offset + 2 * rotary.cos.cols <= group_stride);
  OUTRIDER_CHECK(int64_t{groups} * group_stride <= x.cols);
  pool.ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    for (int32_t g = 0; g < groups; ++g) {
      RotateRow(x.row(r) + int64_t{g} * group_stride + offset, rotary, r);
    }
  });
}

void CombineExperts(ThreadPool& pool, MatrixView<const float> y, const int32_t* rows,
                    const float* weights, int32_t top_k, MatrixView<float> out) {
  OUTRIDER_CHECK(y.cols == out.cols);
  pool.ParallelFor(out.rows, [&](int64_t r, int /*thread*/) {
    for (int64_t i = 0; i < out.cols; ++i) {
      float sum = 0;
      for (int64_t j = r * top_k; j < (r + 1) * top_k; ++j) {
        sum = std::fma(weights[j], y.row(rows[j])[i], sum);
      }
      out.row(r)[i] += sum;
    }
  });
}

void AddWeighted(const float* const* y, const float* weights, int64_t count, int64_t n,
                 float* out) {
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < count; ++j) sum = std::fma(weights[j], y[j][i], sum);
    out[i] += sum;
  }
}

}  // namespace outrider::reference
