// FP4 codes in AVX2 leaves (include there only): a tile of R rows of x times P panels, codes
// widened in registers.
//
// The 32 bytes of eight outputs hold eight columns, a word of 32 bits for each output
// (PackedMatrix). Shuffled to a column pair per word, a byte for each output, they are looked up 32
// codes at a time, as the two bytes of a bfloat16; those of one column then become floats.
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/panel_tile.h"
#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx2 {
// One copy per leaf file: these must not become shared symbols with AVX2 code.
namespace {  // NOLINT(google-build-namespaces)

inline constexpr int64_t kFp4WordCols = 8;
inline constexpr int64_t kFp4WordBytes = kFp4WordCols / 2 * kPanelRows;  // of these columns

class Fp4Reader {
 public:
  /// Eight columns of eight outputs, without their scales.
  struct Columns {
    // Columns 0 and 4, in the lower and the upper half of each lane of 16 bytes, and 1 and 5; then
    // 2 and 6, 3 and 7.
    __m256i of[2][2];

    template <int kColumn>
    __attribute__((always_inline)) __m256 Read() const {
      const __m256i pair = of[kColumn % 4 / 2][kColumn % 2];
      const __m256i zero = _mm256_setzero_si256();
      return _mm256_castsi256_ps(kColumn < 4 ? _mm256_unpacklo_epi16(zero, pair)
                                             : _mm256_unpackhi_epi16(zero, pair));
    }
  };

  __attribute__((always_inline)) Columns Read(const std::byte* words) const {
    const __m256i codes =
        _mm256_shuffle_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(words)), by_column_);
    const __m256i first = _mm256_and_si256(codes, code_bits_);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi16(codes, 4), code_bits_);
    Columns columns;
    Interleave(first, columns.of[0]);
    Interleave(second, columns.of[1]);
    return columns;
  }

 private:
  __attribute__((always_inline)) void Interleave(__m256i codes, __m256i (&columns)[2]) const {
    const __m256i low = _mm256_shuffle_epi8(low_, codes);
    const __m256i high = _mm256_shuffle_epi8(high_, codes);
    columns[0] = _mm256_unpacklo_epi8(low, high);
    columns[1] = _mm256_unpackhi_epi8(low, high);
  }

  __m256i by_column_ = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m256i code_bits_ = _mm256_set1_epi8(15);
  // The bytes of 0, 0.5, 1, 1.5, 2, 3, 4, 6 as bfloat16, then of their negatives.
  __m256i low_ = _mm256_set1_epi64x(static_cast<int64_t>(0xc0804000c0800000));
  __m256i high_ = _mm256_broadcastsi128_si256(
      _mm_set_epi64x(static_cast<int64_t>(0xc0c0c0c0bfbfbf80), 0x404040403f3f3f00));
};

/// 2^(e - 127) of eight outputs.
inline __attribute__((always_inline)) __m256 Fp4Scales(const uint8_t* exponents) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23));
}

/// Where a tile is.
template <int R>
struct Fp4Place {
  const std::byte* w;  // the first panel, at eight columns
  int64_t panel_bytes;
  const uint8_t* exponents;  // of the columns' group
  int64_t panel_exponents;
  const float* x[R];  // at these columns
  int64_t ahead;
};

/// Adds x[r][i] * W[n][i], i < kFp4WordCols, to the sums of half a panel.
template <int kColumn, int R>
inline __attribute__((always_inline)) void AddFp4Columns(const Fp4Place<R>& place,
                                                         const Fp4Reader::Columns& columns,
                                                         __m256 scales, __m256 (&sums)[R]) {
  if constexpr (kColumn < kFp4WordCols) {
    const __m256 weights = _mm256_mul_ps(columns.Read<kColumn>(), scales);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      MultiplyAdd(_mm256_broadcast_ss(place.x[r] + kColumn), weights, sums[r]);
    }
    KeepLoadsInPlace();
    AddFp4Columns<kColumn + 1>(place, columns, scales, sums);
  }
}

/// Adds the halves of all panels from kHalf on.
template <int kHalf, int R, int P>
inline __attribute__((always_inline)) void AddFp4Halves(const Fp4Reader& reader,
                                                        const Fp4Place<R>& place,
                                                        __m256 (&sums)[2 * P][R]) {
  if constexpr (kHalf < 2 * P) {
    const std::byte* w = place.w + kHalf / 2 * place.panel_bytes;
    if constexpr (kHalf % 2 == 0) {
      Prefetch(w + place.ahead);
      PrefetchFar(w + 2 * place.ahead);
    }
    const uint8_t* exponents = place.exponents + kHalf / 2 * place.panel_exponents + kHalf % 2 * 8;
    AddFp4Columns<0>(place, reader.Read(w + kHalf % 2 * 32), Fp4Scales(exponents), sums[kHalf]);
    AddFp4Halves<kHalf + 1, R, P>(reader, place, sums);
  }
}

/// Panels of a product from `first` on for all rows: each sum is one chain of FMAs over k. Sums go
/// to `to`, panel p, row r to to + (p * R + r) * 16. Each panel's stream is fetched `ahead` bytes
/// ahead.
template <int R, int P>
__attribute__((noinline)) void MultiplyFp4Tile(const PanelProduct& product, int64_t first,
                                               int64_t ahead, float* to) {
  __m256 sums[2 * P][R] = {};
  const Fp4Reader reader;
  const int64_t panel_exponents = product.cols / kFp4Group * kPanelRows;
  Fp4Place<R> place = {.w = product.panels + first * product.panel_bytes,
                       .panel_bytes = product.panel_bytes,
                       .exponents = product.exponents + first * panel_exponents,
                       .panel_exponents = panel_exponents,
                       .x = {},
                       .ahead = ahead};
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) place.x[r] = product.x[r];
  for (int64_t k = 0; k < product.cols; k += kFp4WordCols) {
    if (k > 0 && k % kFp4Group == 0) place.exponents += kPanelRows;
    AddFp4Halves<0, R, P>(reader, place, sums);
    place.w += kFp4WordBytes;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) place.x[r] += kFp4WordCols;
  }
#pragma GCC unroll 8
  for (int half = 0; half < 2 * P; ++half) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      _mm256_store_ps(to + (half / 2 * R + r) * 16 + half % 2 * 8, sums[half][r]);
    }
  }
}

}  // namespace
}  // namespace outrider::cpu::avx2
