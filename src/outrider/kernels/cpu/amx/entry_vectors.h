// What attention in tiles needs of vectors: transposing, weights of the softmax, pairs of bfloat16
// numbers, and fetching entries (include in AMX leaves only).
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

/// The upper halves of floats, in place.
inline __attribute__((always_inline)) __m512i UpperHalves(__m512i bits) {
  return _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

/// Floats rounded to bfloat16 (nearest even); NaN stays NaN where its lower half is zero.
inline __attribute__((always_inline)) __m512 RoundToUpper(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return _mm512_castsi512_ps(UpperHalves(_mm512_add_epi32(below_half, odd)));
}

/// Two vectors of bfloat16 numbers as pairs.
inline __attribute__((always_inline)) __m512i Pairs(__m512 first, __m512 second) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16),
                         _mm512_castps_si512(second));
}

/// Terms of (2^x - 1) / x for |x| <= 1/2, with which 2^x is right to within 3e-7 of itself.
constexpr float kPowerTerms[5] = {std::numbers::ln2_v<float>, 0x1.ebfa4cp-3F, 0x1.c6afeep-5F,
                                  0x1.3cbf6p-7F, 0x1.5ec866p-10F};

/// 2^x for x <= 0, zero where exp(-64) is more, as avx2::Weight, and in lanes not taken; NaN stays
/// NaN. Less exact than avx2::Weight, but weights are rounded to 16 bits.
inline __attribute__((always_inline)) __m512 PowerOfTwo(__m512 x, __mmask16 taken) {
  const __m512 least = _mm512_set1_ps(-64 * std::numbers::log2e_v<float>);
  taken = _mm512_mask_cmp_ps_mask(taken, x, least, _CMP_NLT_UQ);
  x = _mm512_max_ps(least, x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 q = _mm512_set1_ps(kPowerTerms[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kPowerTerms[i]));
  return _mm512_maskz_scalef_ps(taken, _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0F)), n);
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
