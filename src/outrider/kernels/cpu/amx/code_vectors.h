// Codes of 8 bits as bfloat16 (include in AMX leaves only).
#pragma once

#include <immintrin.h>

#include <cstddef>

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

}  // namespace
}  // namespace outrider::cpu::amx
