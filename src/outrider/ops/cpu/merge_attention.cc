#include "outrider/ops/cpu/merge_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outrider/base/error.h"

namespace outrider::cpu {

namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

void CheckShapes(MatrixView<const float> lse, MatrixView<const float> out) {
  OUTRIDER_CHECK(lse.rows == out.rows && lse.cols > 0 && out.cols % lse.cols == 0);
}

void MergeHead(const float* part, float part_lse, int64_t n, float* total, float& total_lse) {
  if (part_lse == kEmpty) return;
  if (total_lse == kEmpty) {
    std::copy_n(part, n, total);
    total_lse = part_lse;
    return;
  }
  const float max = std::max(part_lse, total_lse);
  const float part_weight = std::exp(part_lse - max);
  const float total_weight = std::exp(total_lse - max);
  const float sum = part_weight + total_weight;
  for (int64_t i = 0; i < n; ++i) {
    total[i] = (total_weight * total[i] + part_weight * part[i]) / sum;
  }
  total_lse = max + std::log(sum);
}

}  // namespace

void FinishPartial(ThreadPool& pool, MatrixView<const float> running_sum,
                   PartialAttention partial) {
  CheckShapes(partial.lse, partial.out);
  OUTRIDER_CHECK(running_sum.rows == partial.lse.rows && running_sum.cols == partial.lse.cols);
  const int64_t heads = partial.lse.cols;
  const int64_t n = partial.out.cols / heads;
  pool.ParallelFor(partial.lse.rows, [&](int64_t r, int /*thread*/) {
    for (int64_t h = 0; h < heads; ++h) {
      const float sum = running_sum.row(r)[h];
      float* out = partial.out.row(r) + h * n;
      float& lse = partial.lse.row(r)[h];
      if (sum == 0) {
        std::fill_n(out, n, 0.0F);
        lse = kEmpty;
        continue;
      }
      for (int64_t i = 0; i < n; ++i) out[i] /= sum;
      lse += std::log(sum);
    }
  });
}

void MergeAttention(ThreadPool& pool, PartialAttention part, PartialAttention total) {
  CheckShapes(part.lse, part.out);
  CheckShapes(total.lse, total.out);
  OUTRIDER_CHECK(part.lse.rows == total.lse.rows && part.lse.cols == total.lse.cols);
  OUTRIDER_CHECK(part.out.cols == total.out.cols);
  const int64_t heads = total.lse.cols;
  const int64_t n = total.out.cols / heads;
  pool.ParallelFor(total.lse.rows, [&](int64_t r, int /*thread*/) {
    for (int64_t h = 0; h < heads; ++h) {
      MergeHead(part.out.row(r) + h * n, part.lse.row(r)[h], n, total.out.row(r) + h * n,
                total.lse.row(r)[h]);
    }
  });
}

}  // namespace outrider::cpu
