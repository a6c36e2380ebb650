// Writing and reading the paged cache.

#include <algorithm>
#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

float CacheValue(const LayerCache& cache, int64_t i) {
  if (cache.dtype == DType::kF32) return reinterpret_cast<const float*>(cache.data)[i];
  return ToFloat(reinterpret_cast<const BFloat16*>(cache.data)[i]);
}

void WriteEntries(ThreadPool& pool, MatrixView<const float> entries, const int64_t* slot_mapping,
                  LayerCache cache) {
  CheckWriteEntries(entries, cache);
  pool.ParallelFor(entries.rows, [&](int64_t r, int /*thread*/) {
    if (slot_mapping[r] < 0) return;
    const int64_t first = cache.SlotOffset(slot_mapping[r]);
    for (int64_t i = 0; i < entries.cols; ++i) {
      if (cache.dtype == DType::kF32) {
        reinterpret_cast<float*>(cache.data)[first + i] = entries.row(r)[i];
      } else {
        reinterpret_cast<BFloat16*>(cache.data)[first + i] = ToBFloat16(entries.row(r)[i]);
      }
    }
  });
}

void WriteLatent(ThreadPool& pool, MatrixView<const float> kv, const float* weight, float eps,
                 const RotaryRows& rotary, const int64_t* slot_mapping, LayerCache cache) {
  CheckWriteLatent(kv, rotary, cache);
  const int64_t latent = kv.cols - 2 * rotary.cos.cols;
  std::vector<float> entries(static_cast<size_t>(kv.rows * kv.cols));
  const MatrixView<float> rows = {entries.data(), kv.rows, kv.cols};
  for (int64_t r = 0; r < kv.rows; ++r) {
    std::copy(kv.row(r), kv.row(r) + kv.cols, rows.row(r));
    RmsNormRow(rows.row(r), weight, eps, latent, rows.row(r));
    RotateRow(rows.row(r) + latent, rotary, r);
  }
  WriteEntries(pool, rows, slot_mapping, cache);
}

void GatherLatent(ThreadPool& pool, LayerCache cache, const int32_t* block_table,
                  int32_t first_position, MatrixView<float> latent, MatrixView<float> rope) {
  CheckGatherLatent(cache, latent, rope);
  pool.ParallelFor(latent.rows, [&](int64_t r, int /*thread*/) {
    const int64_t position = first_position + r;
    const int64_t slot = int64_t{block_table[position / cache.block_size]} * cache.block_size +
                         position % cache.block_size;
    const int64_t first = cache.SlotOffset(slot);
    for (int64_t i = 0; i < latent.cols; ++i) latent.row(r)[i] = CacheValue(cache, first + i);
    for (int64_t i = 0; i < rope.cols; ++i) {
      rope.row(r)[i] = CacheValue(cache, first + latent.cols + i);
    }
  });
}

}  // namespace outrider::reference
