// Attention over one split of bfloat16 cache entries with VDPBF16PS. Scores as in
// entry_attention.h, of queries in bfloat16: a lane takes two elements at a time. Outputs take two
// keys at a time: their values, interleaved, meet both keys' weights. Pairs of keys lie at fixed
// positions of the split, and a key beyond what a row sees is a zero to it, so no order of sums
// depends on other rows.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512_bf16/leaves.h"
#include "outrider/kernels/cpu/avx512_bf16/vectors.h"
#include "outrider/kernels/cpu/entry_attention.h"

namespace outrider::cpu::avx512_bf16 {

namespace {

struct DotIsa : avx512::SixteenLanes {
  using Elements = __m512i;
  static constexpr bool kDots = true;
  static constexpr int64_t kTileRows = 8;
  static constexpr int64_t kScoreKeys = 24;  // a multiple of every KeysOfTile
  static constexpr int64_t kColumnBytes = 256;

  static constexpr int KeysOfTile(int64_t rows) {
    return rows >= 7 ? 3 : rows >= 5 ? 4 : rows >= 4 ? 6 : 8;
  }

  static __attribute__((always_inline)) Elements Load(const void* elements) {
    return _mm512_loadu_si512(elements);
  }
  static __attribute__((always_inline)) void AddDots(Elements a, Elements b, Vector& sum) {
    avx512_bf16::AddDots(a, b, sum);
  }
  static void RoundPart(const float* q, int64_t width, float* lanes) {
    avx512::RoundToTiles(&q, 1, width, reinterpret_cast<BFloat16*>(lanes));
  }
  static void PairWeights(const EntryBlock& block, int64_t stride);
  template <int R>
  static void OutputRows(const OutputArgs& args, int64_t first, int64_t last, bool from_zero);
};

using PairSums = __m512[2];

/// Sums of 32 columns between memory and the order of interleaved values: of every eight columns
/// the first four are in the first vector.
inline __attribute__((always_inline)) void LoadSums(const float* from, PairSums& sums) {
  const __m512 a = _mm512_loadu_ps(from);
  const __m512 b = _mm512_loadu_ps(from + 16);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  sums[0] = _mm512_permutex2var_ps(a, first, b);
  sums[1] = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(4)), b);
}

inline __attribute__((always_inline)) void StoreSums(const PairSums& sums, float* to) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(sums[0], low, sums[1]));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(sums[0], high, sums[1]));
}

/// out[r] (+)= sum over keys t in [first, last) of weight[t][r] * value[t], for R rows and G times
/// 32 columns. first is even; where last is odd the key after it is a zero.
template <int R, int G>
void OutputTile(const OutputArgs& tile, int64_t first, int64_t last, bool from_zero) {
  PairSums acc[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      if (from_zero) {
        acc[r][g][0] = acc[r][g][1] = _mm512_setzero_ps();
      } else {
        LoadSums(tile.out + r * tile.out_stride + g * 32, acc[r][g]);
      }
    }
  }
  const int64_t bytes = tile.element * 2;
  const float* weights = tile.p + first * tile.stride;
  const auto add = [&](const std::byte* even, __mmask32 exists,
                       const std::byte* odd) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const __m512i a = _mm512_loadu_si512(even + g * 64);
      const __m512i b = _mm512_maskz_loadu_epi16(exists, odd + g * 64);
      _mm_prefetch(reinterpret_cast<const char*>(even + g * 64 + tile.ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(odd + g * 64 + tile.ahead), _MM_HINT_T0);
      const __m512i values[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i both = _mm512_castps_si512(_mm512_set1_ps(weights[r]));
        AddDots(values[0], both, acc[r][g][0]);
        AddDots(values[1], both, acc[r][g][1]);
      }
    }
  };
  int64_t t = first;
  for (; t + 2 <= last; t += 2, weights += 2 * tile.stride) {
    add(tile.entries[t] + bytes, ~__mmask32{0}, tile.entries[t + 1] + bytes);
  }
  if (t < last) add(tile.entries[t] + bytes, 0, tile.entries[t] + bytes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      StoreSums(acc[r][g], tile.out + r * tile.out_stride + g * 32);
    }
  }
}

/// All columns; few rows take more of them at once, to have enough chains.
template <int R>
void DotIsa::OutputRows(const OutputArgs& args, int64_t first, int64_t last, bool from_zero) {
  constexpr int kGroups = R <= 2 ? 4 : R <= 6 ? 2 : 1;
  OutputArgs tile = args;
  const auto go_on = [&](int64_t columns) {
    tile.columns -= columns;
    tile.element += columns;
    tile.out += columns;
  };
  for (; tile.columns >= kGroups * 32; go_on(kGroups * 32)) {
    OutputTile<R, kGroups>(tile, first, last, from_zero);
  }
  for (; tile.columns > 0; go_on(32)) OutputTile<R, 1>(tile, first, last, from_zero);
}

/// The weights of each pair of keys in place of those of the first: rounded already, side by side.
/// Those of keys that a row does not see become zero.
void DotIsa::PairWeights(const EntryBlock& block, int64_t stride) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  for (int64_t r = 0; r < block.rows; r += 8) {
    const auto rows =
        static_cast<__mmask8>(block.rows - r < 8 ? 0xffU >> (8 - (block.rows - r)) : 0xffU);
    const __m256i visible = _mm256_maskz_loadu_epi32(rows, block.visible + r);
    for (int64_t t = 0; t < block.num_keys; t += 2) {
      float* weights = block.scores + t * stride + r;
      const auto position = _mm256_set1_epi32(static_cast<int>(t));
      const __mmask8 first = _mm256_cmpgt_epi32_mask(visible, position);
      const __mmask8 second =
          t + 1 < block.num_keys
              ? _mm256_cmpgt_epi32_mask(visible, _mm256_add_epi32(position, _mm256_set1_epi32(1)))
              : __mmask8{0};
      const __m256i a = _mm256_maskz_loadu_epi32(first, weights);
      const __m256i b = _mm256_maskz_loadu_epi32(second, weights + stride);
      const __m256i pair = _mm256_or_si256(_mm256_srli_epi32(a, 16), _mm256_and_si256(b, high));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights), pair);
    }
  }
}

}  // namespace

void AttendEntries(const EntryBlock& block) {
  if (block.dtype != DType::kBF16) return avx512::AttendEntries(block);
  AttendAs<DotIsa, true>(block);
}

}  // namespace outrider::cpu::avx512_bf16
