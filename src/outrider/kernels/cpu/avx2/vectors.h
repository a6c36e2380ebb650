// Eight floats at a time: tails, rounding and exp, shared by the AVX2 leaves (include there only).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <numbers>

namespace outrider::cpu::avx2 {
// One copy per leaf file: these must not become shared symbols with AVX2 code.
namespace {  // NOLINT(google-build-namespaces)

/// All ones in the first n lanes, 0 <= n <= 8.
inline __m256i TailMask(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// Loads and stores of up to 8 lanes that do not touch memory past the end of a row.
struct Lanes {
  explicit Lanes(int64_t count) : count_(count), mask_(TailMask(count)) {}

  __m256 Load(const float* x) const {
    return count_ == 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, mask_);
  }
  void Store(float* y, __m256 v) const {
    if (count_ == 8) {
      _mm256_storeu_ps(y, v);
    } else {
      _mm256_maskstore_ps(y, mask_, v);
    }
  }

 private:
  int64_t count_;
  __m256i mask_;
};

inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t LanesAt(int64_t i, int64_t n) { return n - i < 8 ? n - i : 8; }

/// x rounded to the nearest bfloat16 (ties to even), as float; NaN stays NaN.
inline __m256 RoundToBFloat16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
  return _mm256_castsi256_ps(
      _mm256_and_si256(result, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

/// sum += a * b, fused, in the register that holds the sum. (For the intrinsic GCC 12 may choose
/// the form that overwrites a factor instead, and then moves sums to the stack.)
inline __attribute__((always_inline)) void MultiplyAdd(__m256 a, __m256 b, __m256& sum) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

/// Eight bfloat16 as float.
inline __m256 WidenBFloat16(const void* from) {
  const __m128i narrow = _mm_loadu_si128(static_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

/// Lane j of vector i and lane i of vector j change places.
inline void Transpose(__m256 (&v)[8]) {
  __m256 pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  __m256 fours[8];
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

/// ((v0 + v2) + (v1 + v3)) + ((v4 + v6) + (v5 + v7)) of each of four vectors.
inline __m128 SumsOfLanes(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 halves =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

/// Eight lanes for what is written once for vectors of any width (entry_attention.h,
/// key_attention.h). Rows are aligned.
struct EightLanes {
  using Vector = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr bool kDots = false;

  static __attribute__((always_inline)) Vector Zero() { return _mm256_setzero_ps(); }
  static __attribute__((always_inline)) Vector Load(const float* x) { return _mm256_load_ps(x); }
  static __attribute__((always_inline)) void Store(float* x, Vector v) { _mm256_store_ps(x, v); }
  static __attribute__((always_inline)) Vector Broadcast(const float* x) {
    return _mm256_broadcast_ss(x);
  }
  static __attribute__((always_inline)) void MultiplyAdd(Vector a, Vector b, Vector& sum) {
    avx2::MultiplyAdd(a, b, sum);
  }
  static __attribute__((always_inline)) __m128 SumsOfLanes(Vector a, Vector b, Vector c, Vector d) {
    return avx2::SumsOfLanes(a, b, c, d);
  }
};

/// Parts of ln 2 for exp, below.
constexpr float kLowerLn2 = -0x1.05c61p-29F;  // ln 2 less its float
constexpr float kExpTerms[5] = {0x1.fffffcp-2F, 0x1.555492p-3F, 0x1.5558f0p-5F, 0x1.1239e2p-7F,
                                0x1.6a25b0p-10F};

/// exp(x) is 2^exponent times `power`, to within 1 ulp; x within the range of float exponents.
///
/// With n = round(x / ln 2) and r = x - n ln 2, |r| <= ln 2 / 2 (ln 2 in two parts: Cody and Waite
/// 1980), exp(x) = 2^n (1 + r + r^2 q(r)). q is a polynomial of degree 4 whose largest relative
/// error in exp(r) is 3e-9.
struct ExpParts {
  explicit ExpParts(__m256 x) {
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(std::numbers::log2e_v<float>)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(std::numbers::ln2_v<float>), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLowerLn2), r);
    __m256 q = _mm256_set1_ps(kExpTerms[4]);
#pragma GCC unroll 4
    for (int i = 3; i >= 0; --i) q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kExpTerms[i]));
    const __m256 fraction = _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r);
    power = _mm256_add_ps(fraction, _mm256_set1_ps(1.0f));
    exponent = _mm256_cvtps_epi32(n);
  }

  __m256 power;
  __m256i exponent;
};

/// 2^n, -126 <= n <= 127.
inline __m256 PowerOfTwo(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/// exp(x) to within 1 ulp, gradual underflow and overflow included; exp(0) is 1, NaN stays NaN.
inline __m256 Exp(__m256 x) {
  // In this order of operands min and max return x when x is NaN.
  x = _mm256_min_ps(_mm256_set1_ps(89.0f), _mm256_max_ps(_mm256_set1_ps(-104.0f), x));
  const ExpParts parts(x);
  // In two halves, so that neither overflows on its own.
  const __m256i first = _mm256_srai_epi32(parts.exponent, 1);
  const __m256i second = _mm256_sub_epi32(parts.exponent, first);
  return _mm256_mul_ps(_mm256_mul_ps(parts.power, PowerOfTwo(first)), PowerOfTwo(second));
}

/// exp(x) for x <= 0 that is to weigh values beside others of weight 1: zero below exp(-64), where
/// it is lost in rounding anyway. Left as they are, such weights and their products would be
/// subnormal, and some processors take a hundred cycles for every operation on those. NaN stays
/// NaN.
inline __m256 Weight(__m256 x) {
  const __m256 least = _mm256_set1_ps(-64.0f);
  const __m256 lost = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
  const ExpParts parts(_mm256_max_ps(least, x));
  return _mm256_andnot_ps(lost, _mm256_mul_ps(parts.power, PowerOfTwo(parts.exponent)));
}

/// What the outputs of two partial softmaxes are multiplied by before they are added.
struct MergeFactors {
  float keep;  // of the one that is there
  float take;  // of the one that comes
};

/// LeafKernels::merge_partial but for the outputs.
inline MergeFactors MergeSums(float partial_max, float partial_sum, float& max, float& sum) {
  const auto weight = [](float x) { return _mm256_cvtss_f32(Weight(_mm256_set1_ps(x))); };
  const float new_max = partial_max > max ? partial_max : max;
  const MergeFactors factors = {weight(max - new_max), weight(partial_max - new_max)};
  max = new_max;
  sum = sum * factors.keep + partial_sum * factors.take;
  return factors;
}

}  // namespace
}  // namespace outrider::cpu::avx2
