// Tiles of AVX-512 products with FP4 codes: R rows of x times P panels, sums in registers, codes
// widened in registers (include in AVX-512 leaves only).
//
// 64 bytes are eight columns of a panel: a word of 32 bits for each of its 16 outputs
// (PackedMatrix). A shift brings a code to the lowest bits of a word or half a word, where a lookup
// takes it without a look at the bits above. Groups of kFp4Group columns share their exponents.
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"
#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx512 {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

inline constexpr int64_t kFp4WordCols = 8;
inline constexpr int64_t kFp4WordBytes = kFp4WordCols / 2 * kPanelRows;  // of these columns
inline constexpr int64_t kFp4GroupBytes = kFp4Group / 2 * kPanelRows;
inline constexpr int64_t kMostFp4Rows = 8;  // of a tile

/// e2m1 codes as bfloat16, twice: the lookup takes the lower five bits of an index.
alignas(64) inline constexpr uint16_t kFp4Values[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
alignas(64) inline constexpr float kFp4Floats[16] = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                     -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

/// Pairs of columns as bfloat16: looked up, and the group's scale added to the exponent of what is
/// not zero.
class Fp4PairReader {
 public:
  /// (e - 127) << 7 of 16 outputs, twice each.
  static __attribute__((always_inline)) __m512i Shift(const uint8_t* exponents) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(exponents)));
    const __m512i twice = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
    return _mm512_slli_epi16(_mm512_sub_epi16(twice, _mm512_set1_epi16(127)), 7);
  }

  /// Columns 2 * kPair and 2 * kPair + 1 of eight.
  template <int kPair>
  __attribute__((always_inline)) __m512i Read(__m512i codes, __m512i shift) const {
    const __m512i index = _mm512_srli_epi16(codes, 4 * kPair);
    const __mmask32 is_not_zero = _mm512_test_epi16_mask(index, magnitude_bits_);
    const __m512i unscaled = _mm512_permutexvar_epi16(index, values_);
    return _mm512_mask_add_epi16(unscaled, is_not_zero, unscaled, shift);
  }

 private:
  __m512i values_ = _mm512_load_si512(kFp4Values);
  __m512i magnitude_bits_ = _mm512_set1_epi16(7);
};

/// Where the streams of a tile's panels are fetched: `ahead` bytes ahead for the first near_groups
/// groups, then ahead_at_end, where the next tile begins.
struct Fp4ReadAhead {
  int64_t near_groups;
  int64_t ahead;
  int64_t ahead_at_end;

  __attribute__((always_inline)) int64_t Of(int64_t group) const {
    return group < near_groups ? ahead : ahead_at_end;
  }
};

/// The panels of a product from `first` on for all rows.
using Fp4TileFunction = void (*)(const PanelProduct& product, int64_t first, Fp4ReadAhead ahead);

/// All rows in one tile: every panel is read once, from its start to its end. Tiles::Of(rows,
/// panels) is the function of up to Tiles::MostPanels(rows) panels.
template <typename Tiles>
void MultiplyFp4(const PanelProduct& product) {
  const int64_t most_panels = Tiles::MostPanels(product.rows);
  const int64_t groups = product.cols / kFp4Group;
  const int64_t groups_ahead = kReadAheadBytes / most_panels / kFp4GroupBytes;
  const int64_t near_groups = groups > groups_ahead ? groups - groups_ahead : 0;
  for (int64_t p = 0; p < product.num_panels; p += most_panels) {
    const int64_t panels = avx2::Least(most_panels, product.num_panels - p);
    Tiles::Of(product.rows, panels)(
        product, p,
        {.near_groups = near_groups,
         .ahead = groups_ahead * kFp4GroupBytes,
         .ahead_at_end = panels * product.panel_bytes - near_groups * kFp4GroupBytes});
  }
}

/// A tile's sums go to y.
template <int R, int P>
inline __attribute__((always_inline)) void StoreFp4Sums(const PanelProduct& product, int64_t first,
                                                        const __m512 (&sums)[R][P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      StoreSums(sums[r][p], product.columns - (first + p) * kPanelRows, product.accumulate,
                product.y + r * product.y_stride + (first + p) * kPanelRows);
    }
  }
}

/// Adds x[r][i] * W[n][i], i < kFp4WordCols, to the sums of every row and panel: column i to
/// sums[i % S].
template <int kColumn, int R, int P, int S>
inline __attribute__((always_inline)) void AddFp4Columns(const float* const (&x)[R],
                                                         const __m512i (&codes)[P],
                                                         const __m512 (&scales)[P], __m512 values,
                                                         __m512 (&sums)[S][R][P]) {
  if constexpr (kColumn < kFp4WordCols) {
    constexpr auto kBit = static_cast<unsigned>(CodeBit(kColumn));
    __m512 weights[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const __m512i index = _mm512_srli_epi32(codes[p], kBit);
      weights[p] = _mm512_mul_ps(_mm512_permutexvar_ps(index, values), scales[p]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 xk = _mm512_set1_ps(x[r][kColumn]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) MultiplyAdd(xk, weights[p], sums[kColumn % S][r][p]);
      // Or the compiler reads all of x early, and has too few registers for the sums.
      asm volatile("" ::: "memory");
    }
    AddFp4Columns<kColumn + 1>(x, codes, scales, values, sums);
  }
}

/// Rows of floats. With kByPairs the sums of a group's even and odd columns are separate chains, as
/// TDPBF16PS has them; otherwise a sum is one chain.
template <int R, int P, bool kByPairs>
void MultiplyFp4Tile(const PanelProduct& product, int64_t first, Fp4ReadAhead ahead) {
  static_assert(kTileCols == kFp4Group);
  const int64_t panel_bytes = product.panel_bytes;
  const int64_t groups = product.cols / kFp4Group;
  const std::byte* w = product.panels + first * panel_bytes;
  const uint8_t* exponents = product.exponents + first * groups * kPanelRows;
  const __m512 values = _mm512_load_ps(kFp4Floats);
  constexpr int kChains = kByPairs ? 2 : 1;
  __m512 total[R][P] = {};
  __m512 sums[kChains][R][P] = {};
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = product.x[r];
  for (int64_t group = 0; group < groups; ++group, exponents += kPanelRows) {
    const int64_t fetch = ahead.Of(group);
    __m512 scales[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const auto* e = reinterpret_cast<const __m128i*>(exponents + p * groups * kPanelRows);
      scales[p] =
          _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(e)), 23));
    }
    for (int64_t k = 0; k < kFp4Group; k += kFp4WordCols, w += kFp4WordBytes) {
      __m512i codes[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        FetchAhead(w + p * panel_bytes + fetch);
        codes[p] = _mm512_load_si512(w + p * panel_bytes);
      }
      AddFp4Columns<0>(x, codes, scales, values, sums);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) x[r] += kFp4WordCols;
    }
    if constexpr (kByPairs) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          total[r][p] = _mm512_add_ps(total[r][p], _mm512_add_ps(sums[0][r][p], sums[1][r][p]));
          sums[0][r][p] = _mm512_setzero_ps();
          sums[1][r][p] = _mm512_setzero_ps();
        }
      }
    }
  }
  StoreFp4Sums(product, first, kByPairs ? total : sums[0]);
}

}  // namespace
}  // namespace outrider::cpu::avx512
