// What attention in tiles needs of vectors: transposing, weights of the softmax and pairs of them,
// and fetching entries (include in AMX leaves only).
#pragma once

#include <immintrin.h>

#include <numbers>

#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

using Rows16 = __m512i[16];

/// Rows of 16 numbers of 32 bits become columns.
inline __attribute__((always_inline)) void Transpose(Rows16& rows) {
  Rows16 pairs;
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  Rows16 fours;
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

/// Weights of the softmax as pairs of bfloat16 numbers (rounded to nearest even, NaN stays NaN),
/// one of each vector.
inline __attribute__((always_inline)) __m512i RoundToPairs(__m512 first, __m512 second) {
  // Numbers of the first vector come in the lower half.
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order,
                                  reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}

/// sums + the first + the second number of each pair.
inline __attribute__((always_inline)) __m512 AddPairs(__m512 sums, __m512i pairs) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(pairs),
                          reinterpret_cast<__m512bh>(ones));
}

/// Terms of (2^x - 1) / x for |x| <= 1/2, with which 2^x is right to within 3e-7 of itself.
constexpr float kPowerTerms[5] = {std::numbers::ln2_v<float>, 0x1.ebfa4cp-3F, 0x1.c6afeep-5F,
                                  0x1.3cbf6p-7F, 0x1.5ec866p-10F};

/// 2^x for x <= 0, zero where exp(-64) is more, as avx2::Weight, and in lanes not taken; NaN stays
/// NaN. Less exact than avx2::Weight, but weights are rounded to 8 bits.
inline __attribute__((always_inline)) __m512 PowerOfTwo(__m512 x, __mmask16 taken) {
  const __m512 least = _mm512_set1_ps(-64 * std::numbers::log2e_v<float>);
  taken = _mm512_mask_cmp_ps_mask(taken, x, least, _CMP_NLT_UQ);
  // The sum's lowest bits are round(x), and shifted they are added to an exponent: two operations
  // less than rounding and scaling take. (Those of NaN are zero.)
  const __m512 integers = _mm512_set1_ps(0x1.8p23F);
  const __m512 rounded = _mm512_add_ps(x, integers);
  const __m512 r = _mm512_sub_ps(x, _mm512_sub_ps(rounded, integers));
  __m512 q = _mm512_set1_ps(kPowerTerms[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kPowerTerms[i]));
  const __m512i power = _mm512_castps_si512(_mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0F)));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(taken, power, exponent));
}

/// Fetches entries into L2, line by line, first those of the block itself that nobody has fetched,
/// then the next ones.
class EntryFetcher {
 public:
  EntryFetcher(const EntryBlock& block, int64_t fetched)
      : first_byte_(block.groups[0].key * 2),
        lines_((block.own_width * 2 + 63) / 64),
        at_(block.entries + fetched),
        end_(block.entries + block.num_keys),
        next_(block.next_entries),
        num_next_(block.num_next) {}

  /// Lines of `count` entries.
  int64_t LinesOf(int64_t count) const { return lines_ * count; }

  void Fetch(int64_t lines) {
    while (lines > 0) {
      if (at_ == end_) {
        if (num_next_ == 0) return;
        at_ = next_;
        end_ = next_ + num_next_;
        num_next_ = 0;
      }
      const auto* entry = reinterpret_cast<const char*>(*at_) + first_byte_;
      const int64_t last = Least(lines_, line_ + lines);
      lines -= last - line_;
      for (; line_ < last; ++line_) _mm_prefetch(entry + line_ * 64, _MM_HINT_T1);
      if (line_ == lines_) {
        line_ = 0;
        ++at_;
      }
    }
  }

 private:
  int64_t first_byte_;  // of an entry
  int64_t lines_;       // of an entry
  const std::byte* const* at_;
  const std::byte* const* end_;
  const std::byte* const* next_;
  int64_t num_next_;
  int64_t line_ = 0;
};

}  // namespace
}  // namespace outrider::cpu::amx
