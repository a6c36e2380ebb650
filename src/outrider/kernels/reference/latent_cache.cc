// Writing and reading the paged latent cache.

#include <vector>

#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

float CacheValue(const LatentCache& cache, int64_t i) {
  if (cache.dtype == DType::kF32) return reinterpret_cast<const float*>(cache.data)[i];
  return ToFloat(reinterpret_cast<const BFloat16*>(cache.data)[i]);
}

void WriteLatent(ThreadPool& pool, MatrixView<const float> kv, const float* weight, float eps,
                 const RotaryRows& rotary, const int64_t* slot_mapping, LatentCache cache) {
  CheckWriteLatent(kv, rotary, cache);
  const int64_t latent = kv.cols - 2 * rotary.cos.cols;
  pool.ParallelFor(kv.rows, [&](int64_t r, int /*thread*/) {
    if (slot_mapping[r] < 0) return;
    std::vector<float> entry(kv.row(r), kv.row(r) + kv.cols);
    RmsNormRow(entry.data(), weight, eps, latent, entry.data());
    RotateRow(entry.data() + latent, rotary, r);
    const int64_t first = cache.SlotOffset(slot_mapping[r]);
    for (int64_t i = 0; i < kv.cols; ++i) {
      if (cache.dtype == DType::kF32) {
        reinterpret_cast<float*>(cache.data)[first + i] = entry[static_cast<size_t>(i)];
      } else {
        reinterpret_cast<BFloat16*>(cache.data)[first + i] =
            ToBFloat16(entry[static_cast<size_t>(i)]);
      }
    }
  });
}

void GatherLatent(ThreadPool& pool, LatentCache cache, const int32_t* block_table,
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
