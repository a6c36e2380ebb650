// Attention over one split of cache entries with AVX-512: entry_attention.h with sixteen lanes. A
// score is a sum of 16 lanes, whose halves are added first.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512/vectors.h"
#include "outrider/kernels/cpu/entry_attention.h"

namespace outrider::cpu::avx512 {

namespace {

struct EntryIsa : SixteenLanes {
  static constexpr int64_t kTileRows = 8;
  static constexpr int64_t kScoreKeys = 24;  // a multiple of every KeysOfTile
  static constexpr int64_t kColumnBytes = 256;

  static constexpr int KeysOfTile(int64_t rows) {
    return rows >= 7 ? 3 : rows >= 5 ? 4 : rows >= 2 ? 6 : 8;
  }
  static constexpr int GroupsOfTile(int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

  template <bool kIsBFloat16, int kParity>
  static __attribute__((always_inline)) Vector Elements(const std::byte* entry, int64_t i) {
    if constexpr (kIsBFloat16) return WidenHalf<kParity>(entry + i * 2);
    return _mm512_loadu_ps(reinterpret_cast<const float*>(entry) + i + kParity * 16);
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void BothElements(const std::byte* entry, int64_t i,
                                                          Vector& even, Vector& odd) {
    even = Elements<kIsBFloat16, 0>(entry, i);
    odd = Elements<kIsBFloat16, 1>(entry, i);
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void LoadLanes(const float* x, Vector& first,
                                                       Vector& second) {
    const __m512 a = _mm512_loadu_ps(x);
    const __m512 b = _mm512_loadu_ps(x + 16);
    if constexpr (!kIsBFloat16) {
      first = a;
      second = b;
    } else {
      const __m512i even =
          _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      first = _mm512_permutex2var_ps(a, even, b);
      second = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
    }
  }

  template <bool kIsBFloat16>
  static __attribute__((always_inline)) void StoreLanes(Vector first, Vector second, float* x) {
    if constexpr (!kIsBFloat16) {
      _mm512_storeu_ps(x, first);
      _mm512_storeu_ps(x + 16, second);
    } else {
      const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
      _mm512_storeu_ps(x, _mm512_permutex2var_ps(first, low, second));
      _mm512_storeu_ps(x + 16, _mm512_permutex2var_ps(first, high, second));
    }
  }
};

}  // namespace

void AttendEntries(const EntryBlock& block) { Attend<EntryIsa>(block); }

}  // namespace outrider::cpu::avx512
