// y = x W^T: every output is one chain of fused multiply-adds in order of k, from zero.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

namespace {

/// The scale of the column's group, in row n of panel p of a 4-bit format.
float GroupScale(const PackedMatrix& w, int64_t p, int64_t n, int64_t k) {
  const int64_t at = k / w.format.group_cols() * kPanelRows + n;
  const uint8_t* scales = w.group_scales(p);
  if (w.format.group_scale == DType::kF8E8M0) return Float8E8M0ToFloat(scales[at]);
  if (w.format.group_scale == DType::kF8E4M3) return Float8E4M3ToFloat(scales[at]);
  BFloat16 scale;
  std::memcpy(&scale, scales + 2 * at, 2);
  return ToFloat(scale);
}

/// The code of (n, k) of a panel of 4-bit codes.
uint8_t FourBits(const std::byte* panel, int64_t n, int64_t k) {
  const uint32_t word = reinterpret_cast<const uint32_t*>(panel)[k / 8 * kPanelRows + n];
  return static_cast<uint8_t>(word >> CodeBit(k) & 15U);
}

/// The factor of x[k] in the chain of output p * 16 + n, read from panel p: W without its float32
/// scale.
float PanelValue(const PackedMatrix& w, int64_t p, const std::byte* panel, int64_t n, int64_t k) {
  switch (w.format.dtype) {
    case DType::kF32:
      return reinterpret_cast<const float*>(panel)[k * kPanelRows + n];
    case DType::kF8E4M3:
      return Float8E4M3ToFloat(
          static_cast<uint8_t>(panel[k / 2 * 32 + n % 8 * 4 + n / 8 * 2 + k % 2]));
    case DType::kF4E2M1:
      return Float4E2M1ToFloat(FourBits(panel, n, k)) * GroupScale(w, p, n, k);
    case DType::kI4:
      return Int4ToFloat(FourBits(panel, n, k)) * GroupScale(w, p, n, k);
    case DType::kI8:
      return static_cast<int8_t>(panel[k * kPanelRows + n]);
    default:
      return ToFloat(reinterpret_cast<const BFloat16*>(panel)[k / 2 * 32 + n * 2 + k % 2]);
  }
}

void PanelProduct(const MatMulJob& job, int64_t p, bool round_x) {
  const PackedMatrix& w = *job.w;
  const DType dtype = w.format.dtype;
  const std::byte* panel = w.data + p * static_cast<int64_t>(PanelBytes(dtype, w.cols));
  const int64_t first = p * kPanelRows;
  const int64_t count = std::min(kPanelRows, w.rows - first);
  for (int64_t r = 0; r < job.y.rows; ++r) {
    const float* x = job.x.row(job.x_rows != nullptr ? job.x_rows[r] : r);
    float sums[kPanelRows] = {};
    for (int64_t k = 0; k < w.cols; ++k) {
      float xk = round_x ? RoundToBFloat16(x[k]) : x[k];
      if (dtype == DType::kF8E4M3) xk *= w.scales(p)[k / w.format.scale_cols];
      for (int64_t n = 0; n < count; ++n) {
        sums[n] = std::fma(xk, PanelValue(w, p, panel, n, k), sums[n]);
      }
    }
    float* y = job.y.row(r) + first;
    for (int64_t n = 0; n < count; ++n) {
      if (dtype == DType::kI8) sums[n] *= w.scales(p)[n];
      if (w.format.row_scales) sums[n] *= w.row_scales(p)[n];
      y[n] = job.accumulate ? y[n] + sums[n] : sums[n];
    }
  }
}

}  // namespace

void MatMul(ThreadPool& pool, std::span<const MatMulJob> jobs, DType operand_dtype) {
  CheckMatMul(jobs, operand_dtype);
  for (const MatMulJob& job : jobs) {
    pool.ParallelFor(job.w->panels(), [&](int64_t p, int /*thread*/) {
      PanelProduct(job, p, operand_dtype == DType::kBF16);
    });
  }
}

void MatMulArgMax(ThreadPool& pool, const ArgMaxJob& job, DType operand_dtype) {
  const auto rows = static_cast<int64_t>(job.columns.size());
  const int64_t cols = job.w->rows;
  std::vector<float> y(static_cast<size_t>(rows * cols));
  const MatMulJob product{
      .x = job.x, .x_rows = job.x_rows, .w = job.w, .y = {y.data(), rows, cols}};
  MatMul(pool, {&product, 1}, operand_dtype);
  for (int64_t r = 0; r < rows; ++r) {
    float largest = -std::numeric_limits<float>::infinity();
    int32_t& column = job.columns[static_cast<size_t>(r)] = -1;
    for (int64_t n = 0; n < cols; ++n) {
      if (product.y.row(r)[n] > largest) {
        largest = product.y.row(r)[n];
        column = static_cast<int32_t>(n);
      }
    }
    const bool has_nan = std::any_of(product.y.row(r), product.y.row(r) + cols,
                                     [](float y) { return std::isnan(y); });
    if (has_nan) largest = std::numeric_limits<float>::infinity();
    if (std::isinf(largest)) column = -1;
    if (!job.values.empty()) job.values[static_cast<size_t>(r)] = largest;
  }
}

}  // namespace outrider::reference
