// The queries of the swap-AB MLA decode body: from bf16 rows in global memory to the f16 operand in
// shared memory.
#pragma once

#include "outrider/kernels/cuda/hopper/wgmma_f16.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_block.cuh"

namespace outrider::cuda {

/// Queries of an item to f16 in shared memory, by all consumers. A row is multiplied by the power
/// of two that brings its largest value into [2^14, 2^15), so the conversion is exact except for
/// values 2^-31 times smaller. Within 16 dimensions, pair p goes where ldmatrix puts the bytes of
/// keys that it must meet: pairs 0, 2, 4, 6 first, then 1, 3, 5, 7. The bf16 rows come by a bulk
/// copy to where the folded splits will be, and a loop converts them: code that runs once is slow
/// to fetch.
template <int kRows>
__device__ __forceinline__ void LoadQueries(const MlaKernelArguments& args,
                                            const __nv_bfloat16* queries,
                                            MlaSwapAbShared<kRows>& shared, const MlaItem& item,
                                            uint32_t parity) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int rows = item.num_rows();
  const uint32_t* staged = reinterpret_cast<const uint32_t*>(shared.running);
  if (threadIdx.x == 0) {
    const uint32_t bytes = rows * kMlaKeyDim * 2;
    BarrierArriveExpect(&shared.q_full, bytes);
    BulkLoad(shared.running, queries + static_cast<size_t>(item.first_row) * kMlaKeyDim, bytes,
             &shared.q_full);
  }
  BarrierWait(&shared.q_full, parity);
#pragma unroll 1
  for (int row = warp; row < kRows; row += 4 * kSwapAbConsumers) {
    uint32_t words[9];
    uint32_t largest = 0;  // bits of a magnitude; bf16 in the high half
#pragma unroll
    for (int group = 0; group < 9; ++group) {
      words[group] = row < rows ? staged[row * (kMlaKeyDim / 2) + group * 32 + lane] : 0;
      largest = max(largest, max(words[group] << 16 & 0x7FFF0000u, words[group] & 0x7FFF0000u));
    }
    largest = __reduce_max_sync(~0u, largest);
    const uint32_t exponent = min(254u, max(40u, largest >> 23));
    const float scale = __uint_as_float((268 - exponent) << 23);  // 2^(14 - (exponent - 127))
    if (lane == 0) {
      shared.row_scale[row] = args.score_scale * __uint_as_float((exponent - 14) << 23);
    }
    const int chunk = lane / 8 * 2 + lane % 2;
    uint8_t* destination = shared.q + row / 8 * kQGroupBytes + row % 8 * 128 +
                           ((chunk ^ (row % 8)) * 16) + lane % 8 / 2 * 4;
#pragma unroll
    for (int group = 0; group < 9; ++group) {
      const float low = __uint_as_float(words[group] << 16) * scale;
      const float high = __uint_as_float(words[group] & 0xFFFF0000u) * scale;
      *reinterpret_cast<uint32_t*>(destination + group * kGroupBytes) = PackF16(low, high);
    }
  }
}

}  // namespace outrider::cuda
