// From the sums of a group of rows and a panel to their outputs (include in AMX leaves only).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

/// sums [rows, 16] (+)= scale * products [rows, 16], which are those of the columns of panel
/// `panel` that share scale number `scale_group`; the first ones begin the sums.
template <typename W>
inline __attribute__((always_inline)) void AddScaled(const PanelProduct& product, int64_t panel,
                                                     int64_t scale_group, int64_t rows,
                                                     const float* products, float* sums) {
  const __m512 scale =
      _mm512_set1_ps(product.scales[panel * product.scales_per_panel + scale_group] * W::kFactor);
  for (int64_t i = 0; i < rows * 16; i += 16) {
    const __m512 before = scale_group == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums + i);
    _mm512_store_ps(sums + i, _mm512_fmadd_ps(_mm512_load_ps(products + i), scale, before));
  }
}

/// sums [rows, 16] of all columns of panel `panel` are the outputs of rows [first_row, ..).
template <typename W>
inline __attribute__((always_inline)) void FinishSums(const PanelProduct& product, int64_t panel,
                                                      int64_t first_row, int64_t rows,
                                                      const float* sums) {
  float* y = product.y + first_row * product.y_stride + panel * 16;
  for (int64_t r = 0; r < rows; ++r) {
    StoreSums(W::Finished(_mm512_load_ps(sums + r * 16), product.scales, panel),
              product.columns - panel * 16, product.accumulate, y + r * product.y_stride);
  }
}

}  // namespace
}  // namespace outrider::cpu::amx
