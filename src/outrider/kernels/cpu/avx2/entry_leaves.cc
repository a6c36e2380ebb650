// Attention over one split of cache entries with AVX2 and FMA: entry_attention.h with eight lanes.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/entry_attention.h"

namespace outrider::cpu::avx2 {

namespace {

alignas(32) constexpr uint32_t kUpperHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                  0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

struct EntryIsa : EightLanes {
  static constexpr int64_t kTileRows = 6;
  static constexpr int64_t kScoreKeys = 24;  // a multiple of every KeysOfTile
  static constexpr int64_t kColumnBytes = 128;

  static constexpr int KeysOfTile(int64_t rows) {
    return rows >= 5 ? 2 : rows >= 3 ? 3 : rows == 2 ? 4 : 8;
  }
  static constexpr int GroupsOfTile(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  template <bool kIsBFloat16, int kParity>
  static __attribute__((always_inline)) Vector Elements(const std::byte* entry, int64_t i) {
    if constexpr (!kIsBFloat16) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(entry) + i + kParity * 8);
    } else {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entry + i * 2));
      if constexpr (kParity == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      // The mask stays in memory: in a register it would drive a sum of the largest tiles out.
      __m256 upper;
      asm("vandps %2, %1, %0" : "=x"(upper) : "x"(both), "m"(kUpperHalves));
      return upper;
    }
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void BothElements(const std::byte* entry, int64_t i,
                                                          Vector& even, Vector& odd) {
    if constexpr (!kIsBFloat16) {
      even = Elements<false, 0>(entry, i);
      odd = Elements<false, 1>(entry, i);
    } else {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entry + i * 2));
      even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      odd = _mm256_castsi256_ps(
          _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    }
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void LoadLanes(const float* x, Vector& first,
                                                       Vector& second) {
    const __m256 a = _mm256_loadu_ps(x);
    const __m256 b = _mm256_loadu_ps(x + 8);
    if constexpr (!kIsBFloat16) {
      first = a;
      second = b;
    } else {
      first = _mm256_castpd_ps(
          _mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
      second = _mm256_castpd_ps(
          _mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
    }
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void StoreLanes(Vector first, Vector second, float* x) {
    if constexpr (!kIsBFloat16) {
      _mm256_storeu_ps(x, first);
      _mm256_storeu_ps(x + 8, second);
    } else {
      const __m256 low = _mm256_unpacklo_ps(first, second);
      const __m256 high = _mm256_unpackhi_ps(first, second);
      _mm256_storeu_ps(x, _mm256_permute2f128_ps(low, high, 0x20));
      _mm256_storeu_ps(x + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
  }
};

}  // namespace

void AttendEntries(const EntryBlock& block) { Attend<EntryIsa>(block); }

}  // namespace outrider::cpu::avx2
