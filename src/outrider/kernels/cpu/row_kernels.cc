#include "outrider/kernels/cpu/row_kernels.h"

#include <algorithm>
#include <cstring>

#include "outrider/base/rounded_exp.h"
#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

// Nanoseconds per element, for the choice of inline or shared work.
constexpr double kNormCost = 0.25;
constexpr double kSiluCost = 0.6;
constexpr double kRotateCost = 0.4;
constexpr double kCopyCost = 0.15;

/// Runs task(row) for all rows; several rows make up a task where one alone is too little.
template <typename TaskOfRow>
void ForRows(ThreadPool& pool, int64_t rows, double nanoseconds_per_row, TaskOfRow task) {
  const double total = static_cast<double>(rows) * nanoseconds_per_row;
  const double per_task = TaskNanoseconds(total, pool.size());
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(per_task / nanoseconds_per_row));
  RunTasks(pool, (rows + step - 1) / step, total, [&](int64_t i) {
    for (int64_t r = i * step; r < std::min(rows, (i + 1) * step); ++r) task(r);
  });
}

void WriteEntry(const LeafKernels& leaves, const float* entry, int64_t slot,
                const LayerCache& cache) {
  const int64_t first = cache.SlotOffset(slot);
  if (cache.dtype == DType::kF32) {
    std::copy(entry, entry + cache.width, reinterpret_cast<float*>(cache.data) + first);
  } else {
    leaves.narrow(entry, cache.width, reinterpret_cast<BFloat16*>(cache.data) + first);
  }
}

}  // namespace

void RmsNorm(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> x,
             const float* weight, float eps, MatrixView<float> y) {
  OUTRIDER_CHECK(x.rows == y.rows && x.cols == y.cols);
  ForRows(pool, x.rows, static_cast<double>(x.cols) * kNormCost,
          [&](int64_t r) { leaves.rms_norm(x.row(r), weight, eps, x.cols, y.row(r)); });
}

void SiluMul(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> x, float limit,
             MatrixView<float> y) {
  OUTRIDER_CHECK(x.rows == y.rows && x.cols == 2 * y.cols && limit > 0);
  // A row of a wide network is worth sharing; pieces start at multiples of 8, elements are
  // independent.
  constexpr int64_t kPiece = 2048;
  const int64_t pieces = (y.cols + kPiece - 1) / kPiece;
  ForRows(pool, x.rows * pieces, static_cast<double>(std::min(kPiece, y.cols)) * kSiluCost,
          [&](int64_t i) {
            const int64_t r = i / pieces;
            const int64_t first = i % pieces * kPiece;
            const float* gate = x.row(r) + first;
            leaves.silu_mul(gate, gate + y.cols, limit, std::min(kPiece, y.cols - first),
                            y.row(r) + first);
          });
}

void GateHeads(const LeafKernels& /*leaves*/, ThreadPool& pool, MatrixView<const float> gates,
               MatrixView<float> x) {
  OUTRIDER_CHECK(gates.rows == x.rows && gates.cols > 0 && x.cols % gates.cols == 0);
  const int64_t n = x.cols / gates.cols;
  ForRows(pool, x.rows, static_cast<double>(x.cols) * kCopyCost, [&](int64_t r) {
    for (int64_t h = 0; h < gates.cols; ++h) {
      const float gate = Sigmoid(gates.row(r)[h]);
      float* values = x.row(r) + h * n;
      for (int64_t i = 0; i < n; ++i) values[i] *= gate;
    }
  });
}

void Rotate(const LeafKernels& leaves, ThreadPool& pool, MatrixView<float> x, int32_t groups,
            int32_t group_stride, int32_t offset, const RotaryRows& rotary) {
  CheckRotary(rotary, x.rows);
  const int64_t half = rotary.cos.cols;
  OUTRIDER_CHECK(offset + 2 * half <= group_stride);
  OUTRIDER_CHECK(int64_t{groups} * group_stride <= x.cols);
  ForRows(pool, x.rows, static_cast<double>(groups * half) * kRotateCost, [&](int64_t r) {
    for (int64_t g = 0; g < groups; ++g) {
      leaves.rotate(rotary.cos.row(r), rotary.sin.row(r), half, rotary.interleaved,
                    x.row(r) + g * group_stride + offset);
    }
  });
}

void WriteLatent(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> kv,
                 const float* weight, float eps, const RotaryRows& rotary,
                 const int64_t* slot_mapping, LayerCache cache) {
  CheckWriteLatent(kv, rotary, cache);
  const int64_t half = rotary.cos.cols;
  const int64_t latent = kv.cols - 2 * half;
  ForRows(pool, kv.rows, static_cast<double>(kv.cols) * kNormCost, [&](int64_t r) {
    if (slot_mapping[r] < 0) return;
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    auto* entry = scratch.Take<float>(kv.cols);
    leaves.rms_norm(kv.row(r), weight, eps, latent, entry);
    std::copy(kv.row(r) + latent, kv.row(r) + kv.cols, entry + latent);
    leaves.rotate(rotary.cos.row(r), rotary.sin.row(r), half, rotary.interleaved, entry + latent);
    WriteEntry(leaves, entry, slot_mapping[r], cache);
  });
}

void WriteEntries(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> entries,
                  const int64_t* slot_mapping, LayerCache cache) {
  CheckWriteEntries(entries, cache);
  ForRows(pool, entries.rows, static_cast<double>(cache.width) * kCopyCost, [&](int64_t r) {
    if (slot_mapping[r] >= 0) WriteEntry(leaves, entries.row(r), slot_mapping[r], cache);
  });
}

void GatherLatent(const LeafKernels& leaves, ThreadPool& pool, LayerCache cache,
                  const int32_t* block_table, int32_t first_position, MatrixView<float> latent,
                  MatrixView<float> rope) {
  CheckGatherLatent(cache, latent, rope);
  ForRows(pool, latent.rows, static_cast<double>(cache.width) * kCopyCost, [&](int64_t r) {
    const int64_t position = first_position + r;
    const int64_t slot = int64_t{block_table[position / cache.block_size]} * cache.block_size +
                         position % cache.block_size;
    const int64_t first = cache.SlotOffset(slot);
    if (cache.dtype == DType::kF32) {
      const auto* entry = reinterpret_cast<const float*>(cache.data) + first;
      std::copy(entry, entry + latent.cols, latent.row(r));
      std::copy(entry + latent.cols, entry + cache.width, rope.row(r));
    } else {
      const auto* entry = reinterpret_cast<const BFloat16*>(cache.data) + first;
      leaves.widen(entry, latent.cols, latent.row(r));
      leaves.widen(entry + latent.cols, rope.cols, rope.row(r));
    }
  });
}

void CombineExperts(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> y,
                    const int32_t* rows, const float* weights, int32_t top_k,
                    MatrixView<float> out) {
  OUTRIDER_CHECK(y.cols == out.cols);
  ForRows(pool, out.rows, static_cast<double>(out.cols * (top_k + 1)) * kCopyCost, [&](int64_t r) {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    auto* sources = scratch.Take<const float*>(top_k);
    for (int64_t j = 0; j < top_k; ++j) sources[j] = y.row(rows[r * top_k + j]);
    leaves.add_weighted(sources, weights + r * top_k, top_k, out.cols, out.row(r));
  });
}

}  // namespace outrider::cpu
