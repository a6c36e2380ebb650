// Codes of 8 and 4 bits as bfloat16 (include in AMX leaves only).
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "outrider/kernels/cpu/avx512/fp4_tiles.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

/// Four columns of a panel of format W, 64 bytes, as bfloat16 in the layout of a tile, 128 bytes.
/// Codes are exact as bfloat16.
template <typename W>
inline __attribute__((always_inline)) void WidenCodes(const std::byte* from, void* to) {
  const auto pair = [](__m512 even, __m512 odd) {
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(even), 16), 0xaaaaaaaa,
                                 _mm512_castps_si512(odd));
  };
  auto* out = static_cast<__m512i*>(to);
  _mm512_store_si512(out, pair(W::template Load<0>(from), W::template Load<1>(from)));
  _mm512_store_si512(out + 1, pair(W::template Load<2>(from), W::template Load<3>(from)));
}

/// How the codes of a tile of columns of a panel become bfloat16.
template <typename W>
class CodeWidener {
 public:
  CodeWidener(const PanelProduct& /*product*/, int64_t /*panel*/, int64_t /*tile*/) {}

  /// W::kRound columns, 64 bytes.
  __attribute__((always_inline)) void Widen(const std::byte* from, std::byte* to) const {
    WidenCodes<W>(from, to);
  }
};

/// FP4: eight columns at a time, with the exponents of the tile.
struct Fp4Weights : avx512::PlainWeights {
  static constexpr int64_t kRound = avx512::kFp4WordCols;
  static constexpr int64_t kRoundBytes = avx512::kFp4WordBytes;
};

template <>
class CodeWidener<Fp4Weights> {
 public:
  __attribute__((always_inline)) CodeWidener(const PanelProduct& product, int64_t panel,
                                             int64_t tile)
      : shift_(avx512::Fp4PairReader::Shift(
            product.exponents + (panel * (product.cols / kFp4Group) + tile) * kPanelRows)) {}

  __attribute__((always_inline)) void Widen(const std::byte* from, std::byte* to) const {
    const __m512i codes = _mm512_load_si512(from);
    auto* out = reinterpret_cast<__m512i*>(to);
    _mm512_store_si512(out, reader_.Read<0>(codes, shift_));
    _mm512_store_si512(out + 1, reader_.Read<1>(codes, shift_));
    _mm512_store_si512(out + 2, reader_.Read<2>(codes, shift_));
    _mm512_store_si512(out + 3, reader_.Read<3>(codes, shift_));
  }

 private:
  static_assert(kFp4Group == kTileCols);

  avx512::Fp4PairReader reader_;
  __m512i shift_;
};

}  // namespace
}  // namespace outrider::cpu::amx
