// Codes of 8 bits as bfloat16 in the layout of pairs (include in AVX-512 BF16 leaves only).
//
// All codes of a format are 128 magnitudes and a sign, so a code's two bytes are looked up, 64
// codes at a time: seven instructions for what takes twelve by way of float32.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace outrider::cpu::avx512_bf16 {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

struct CodeTables {
  alignas(64) uint8_t order[64] = {};  // of the codes of four columns
  alignas(64) uint8_t low[128] = {};   // bytes of a magnitude as bfloat16
  alignas(64) uint8_t high[128] = {};
};

/// Code 16 * j + i comes to bytes 2 * i and 2 * i + 1 of 16-byte lane j of the first vector, code
/// 16 * j + 8 + i to those of the second: the codes of columns 0 and 1, then of 2 and 3, of outputs
/// 4 * j and on.
constexpr CodeTables TablesOf(int (*place)(int n, int k), float (*magnitude)(int code)) {
  CodeTables tables;
  for (int lane = 0; lane < 4; ++lane) {
    for (int i = 0; i < 16; ++i) {
      const int n = 4 * lane + i % 8 / 2;
      const int k = i / 8 * 2 + i % 2;
      tables.order[16 * lane + i] = static_cast<uint8_t>(place(n, k));
    }
  }
  for (int code = 0; code < 128; ++code) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, magnitude(code)) >> 16;
    tables.low[code] = static_cast<uint8_t>(bits);
    tables.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return tables;
}

/// The tables of a format in registers. Its codes are a sign and a magnitude, or two's complements.
template <const CodeTables& kTables, bool kIsComplement>
class CodeReader {
 public:
  /// Four columns of a panel, 64 bytes, as two pairs.
  __attribute__((always_inline)) void Read(const std::byte* from, __m512i& first,
                                           __m512i& second) const {
    const __m512i codes = _mm512_permutexvar_epi8(order_, _mm512_load_si512(from));
    const __m512i magnitudes = kIsComplement ? _mm512_abs_epi8(codes) : codes;
    const __m512i low = _mm512_permutex2var_epi8(low_[0], magnitudes, low_[1]);
    __m512i high = _mm512_permutex2var_epi8(high_[0], magnitudes, high_[1]);
    constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                     kFirstOrBoth);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  __m512i order_ = _mm512_load_si512(kTables.order);
  __m512i low_[2] = {_mm512_load_si512(kTables.low), _mm512_load_si512(kTables.low + 64)};
  __m512i high_[2] = {_mm512_load_si512(kTables.high), _mm512_load_si512(kTables.high + 64)};
};

}  // namespace
}  // namespace outrider::cpu::avx512_bf16
