// Values of entries as tiles, packed by pairs of keys a little at a time (include in AMX leaves
// only).
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/amx/pair_softmax.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

/// Elements that ValueTiles needs.
constexpr int64_t kPackedValues = int64_t{4} * kTileCols * 64;

/// Two vectors of sums for 32 columns of ValueTiles, in order of the columns.
inline __attribute__((always_inline)) void InOrder(__m512& first, __m512& second) {
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512d even = _mm512_castps_pd(first);
  const __m512d odd = _mm512_castps_pd(second);
  first = _mm512_castpd_ps(_mm512_permutex2var_pd(even, low, odd));
  second = _mm512_castpd_ps(_mm512_permutex2var_pd(even, high, odd));
}

/// Pieces of 32 keys times 32 columns, for two groups of rows, or times 64 columns, for one: first
/// all keys of the first columns, then those of the next ones. A piece lies as
/// [16 columns of all][pair of keys][column][2]. Two are packed ahead of the one in use. Of 32
/// columns the first sixteen are every other four from the first on, as unpacking takes half of
/// each lane (InOrder).
template <int kGroups, bool kAllFinite>
class ValueTiles {
 public:
  ValueTiles(const EntryBlock& block, BFloat16* packed)
      : block_(block), packed_(packed), end_((block.num_keys + kTileCols - 1) / kTileCols) {
    for (int64_t n = 0; n < kAhead; ++n) {
      for (int quarter = 0; quarter < 4; ++quarter) PackQuarter(quarter);
      GoOn();
    }
  }

  /// The piece in use.
  const BFloat16* First() const { return Slot(count_ - kAhead); }
  void Next() { GoOn(); }

  /// Packs pairs [4 quarter, 4 quarter + 4) of the piece that will be in use after two more.
  __attribute__((always_inline)) void PackQuarter(int quarter) {
    if (column_ >= block_.value_width) return;
    const int64_t t = tile_ * kTileCols + quarter * 8;
    const int64_t byte = (block_.groups[0].value + column_) * 2;
    const int64_t vectors = kGroups == 1 && column_ + kTileCols < block_.value_width ? 2 : 1;
    BFloat16* to = Slot(count_) + quarter * 4 * kTileCols;
    const std::byte* const* entries = block_.entries + t;
    if (t + 8 <= block_.num_keys) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, to += kTileCols) {
        const std::byte* even = entries[2 * i] + byte;
        const std::byte* odd = entries[2 * i + 1] + byte;
        StorePairs(Load(even), Load(odd), to);
        if (vectors == 2) StorePairs(Load(even + 64), Load(odd + 64), to + 2 * kTile);
      }
      return;
    }
    const auto load = [&](int64_t i, int64_t vector) {
      return t + i < block_.num_keys ? Load(entries[i] + byte + vector * 64)
                                     : _mm512_setzero_si512();
    };
    for (int64_t i = 0; i < 8; i += 2, to += kTileCols) {
      for (int64_t v = 0; v < vectors; ++v) {
        StorePairs(load(i, v), load(i + 1, v), to + 2 * v * kTile);
      }
    }
  }

 private:
  static constexpr int64_t kColumns = 2 * kTileCols / kGroups;
  static constexpr int64_t kAhead = 2;
  static constexpr int64_t kSlots = 4;

  BFloat16* Slot(int64_t n) const { return packed_ + n % kSlots * kColumns * kTileCols; }

  void GoOn() {
    ++count_;
    if (++tile_ < end_) return;
    tile_ = 0;
    column_ += kColumns;
  }

  /// 32 values of a key, of which those that are no finite numbers become zero.
  static __attribute__((always_inline)) __m512i Load(const std::byte* from) {
    const __m512i x = _mm512_loadu_si512(from);
    if constexpr (kAllFinite) return x;
    const __m512i infinity = _mm512_set1_epi16(0x7f80);
    const __m512i exponent = _mm512_and_si512(x, infinity);
    return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(exponent, infinity), x);
  }

  static __attribute__((always_inline)) void StorePairs(__m512i even, __m512i odd, BFloat16* to) {
    _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(to + kTile, _mm512_unpackhi_epi16(even, odd));
  }

  const EntryBlock& block_;
  BFloat16* packed_;
  int64_t end_;  // tiles of keys
  // The piece that is packed next.
  int64_t count_ = 0;
  int64_t tile_ = 0;
  int64_t column_ = 0;
};

}  // namespace
}  // namespace outrider::cpu::amx
