// Attention over one split of cache entries with AVX2 and FMA.
//
// Entries are read where they lie in the cache. Sixteen bfloat16 arrive as eight 32-bit lanes:
// shifted left they are the elements of even index, masked those of odd index, so queries and sums
// are kept in that order ("lane order") and no widened copy of an entry is ever stored.
//
// Scores: a tile of up to 6 rows keeps a sum of 8 lanes per row and key; a lane takes its elements
// in rising order, then the lanes are added in a tree. Scores lie as [key][row], so that the
// softmax runs down the keys with one row per lane: the sum of the probabilities is four chains,
// one per key % 4, added in a tree. Output: a tile of up to 6 rows x 16 columns adds p_t e_t in
// order of the keys. None of these orders depends on the other rows, so neither do a row's bits.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/entry_softmax.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kTileRows = 6;
constexpr int64_t kStep = 16;  // elements of an entry that arrive together
// Keys whose values stay in L1 while all row tiles pass over a line of columns.
constexpr int64_t kOutputKeys = 128;
// Keys that stay in L1 while all row tiles take their scores: a multiple of every KeysOfTile.
constexpr int64_t kScoreKeys = 24;

alignas(32) constexpr uint32_t kUpperHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                  0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

/// Elements [i, i + 16) of an entry: those of even index in lane order (parity 0), or of odd index.
/// Of float32 the first or the second eight.
template <bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) __m256 Elements(const std::byte* entry, int64_t i) {
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

/// Both, where registers are left for the mask.
template <bool kIsBFloat16>
inline __attribute__((always_inline)) void BothElements(const std::byte* entry, int64_t i,
                                                        __m256& even, __m256& odd) {
  if constexpr (!kIsBFloat16) {
    even = _mm256_loadu_ps(reinterpret_cast<const float*>(entry) + i);
    odd = _mm256_loadu_ps(reinterpret_cast<const float*>(entry) + i + 8);
  } else {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entry + i * 2));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd = _mm256_castsi256_ps(
        _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
}

/// From the order of memory to lane order and back; the two are the same for float32.
template <bool kIsBFloat16>
inline __attribute__((always_inline)) void LoadLanes(const float* x, __m256& first,
                                                     __m256& second) {
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
inline __attribute__((always_inline)) void StoreLanes(__m256 first, __m256 second, float* x) {
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

/// `width` floats in lane order, padded with zeros.
template <bool kIsBFloat16>
void ArrangePart(const float* q, int64_t width, float* lanes) {
  for (int64_t i = 0; i < PaddedPart(width); i += kStep) {
    alignas(32) float tail[kStep] = {};
    const float* from = q + i;
    if (i + kStep > width) {
      for (int64_t j = 0; i + j < width; ++j) tail[j] = q[i + j];
      from = tail;
    }
    __m256 first;
    __m256 second;
    LoadLanes<kIsBFloat16>(from, first, second);
    _mm256_store_ps(lanes + i, first);
    _mm256_store_ps(lanes + i + 8, second);
  }
}

template <bool kIsBFloat16>
void ArrangeQueries(const EntryBlock& block) {
  float* lanes = block.lanes;
  for (int64_t r = 0; r < block.rows; ++r) {
    ArrangePart<kIsBFloat16>(block.q[r], block.own_width, lanes);
    lanes += PaddedPart(block.own_width);
    ArrangePart<kIsBFloat16>(block.q[r] + block.own_width, block.shared_width, lanes);
    lanes += PaddedPart(block.shared_width);
  }
}

/// acc[t][r] += products of q[r] and entries[t] at the elements of one parity of [i, i + 16).
template <int R, int T, bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) void AddParity(const float* q, int64_t q_stride,
                                                     const std::byte* const (&entries)[T],
                                                     int64_t i, __m256 (&acc)[T][R]) {
  __m256 k[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) k[t] = Elements<kIsBFloat16, kParity>(entries[t], i);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m256 qr = _mm256_load_ps(q + r * q_stride + kParity * 8);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) MultiplyAdd(qr, k[t], acc[t][r]);
    // Or the compiler reads all of q early, and has too few registers for the sums.
    asm volatile("" ::: "memory");
  }
}

/// The same for both parities, in order.
template <int R, int T, bool kIsBFloat16>
inline __attribute__((always_inline)) void AddScores(const float* q, int64_t q_stride,
                                                     const std::byte* const (&entries)[T],
                                                     int64_t i, __m256 (&acc)[T][R]) {
  if constexpr (R > 2) {
    AddParity<R, T, kIsBFloat16, 0>(q, q_stride, entries, i, acc);
    AddParity<R, T, kIsBFloat16, 1>(q, q_stride, entries, i, acc);
  } else {
    // There are registers for both parities of an entry: it is loaded once.
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      __m256 even;
      __m256 odd;
      BothElements<kIsBFloat16>(entries[t], i, even, odd);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        MultiplyAdd(_mm256_load_ps(q + r * q_stride), even, acc[t][r]);
        MultiplyAdd(_mm256_load_ps(q + r * q_stride + 8), odd, acc[t][r]);
      }
    }
  }
}

/// The queries of a tile and the two parts of its keys.
struct ScoreArgs {
  const float* q;  // of the tile's first row, in lane order
  int64_t q_stride;
  int64_t own;  // first element of an entry
  int64_t own_width;
  int64_t shared;
  int64_t shared_width;
  float scale;
  int64_t stride;  // of scores
};

/// scores[t * stride + r] = scale * dot(q[r], key of entries[t]) for R rows and T keys. Writes up
/// to three scores more per key: those of the next tile, which comes later, or padding.
template <int R, int T, bool kIsBFloat16>
void ScoreTile(const ScoreArgs& args, const std::byte* const* entries, float* scores) {
  __m256 acc[T][R];
  const std::byte* entry[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    entry[t] = entries[t];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  const float* q = args.q;
  const int64_t q_stride = args.q_stride;
  const int64_t own_end = args.own + args.own_width;
  for (int64_t i = args.own; i < own_end; i += kStep, q += kStep) {
    AddScores<R, T, kIsBFloat16>(q, q_stride, entry, i, acc);
  }
  const int64_t shared_end = args.shared + args.shared_width;
  for (int64_t i = args.shared; i < shared_end; i += kStep, q += kStep) {
    AddScores<R, T, kIsBFloat16>(q, q_stride, entry, i, acc);
  }
  const __m128 scale4 = _mm_set1_ps(args.scale);
  if constexpr (R == 1 && T % 4 == 0) {
#pragma GCC unroll 8
    for (int t = 0; t < T; t += 4) {
      const __m128 dots = SumsOfLanes(acc[t][0], acc[t + 1][0], acc[t + 2][0], acc[t + 3][0]);
      alignas(16) float four[4];
      _mm_store_ps(four, _mm_mul_ps(dots, scale4));
      for (int i = 0; i < 4; ++i) scores[(t + i) * args.stride] = four[i];
    }
    return;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r += 4) {
      const __m128 dots = SumsOfLanes(acc[t][r], acc[t][r + 1 < R ? r + 1 : r],
                                      acc[t][r + 2 < R ? r + 2 : r], acc[t][r + 3 < R ? r + 3 : r]);
      _mm_storeu_ps(scores + t * args.stride + r, _mm_mul_ps(dots, scale4));
    }
  }
}

/// Keys per tile: enough chains to hide the latency of an FMA, few enough for the registers.
constexpr int64_t KeysOfTile(int64_t rows) {
  return rows >= 5 ? 2 : rows >= 3 ? 3 : rows == 2 ? 4 : 8;
}

/// Keys [first, last) for R rows, in tiles of T keys, the rest in smaller ones.
template <int R, int T, bool kIsBFloat16>
inline void ScoreKeys(const ScoreArgs& args, const std::byte* const* entries, int64_t first,
                      int64_t last, float* scores, ReadAhead& ahead) {
  for (; first + T <= last; first += T) {
    ahead.Step();
    ScoreTile<R, T, kIsBFloat16>(args, entries + first, scores + first * args.stride);
  }
  if constexpr (T > 1) {
    ScoreKeys<R, T / 2, kIsBFloat16>(args, entries, first, last, scores, ahead);
  }
}

template <int R, bool kIsBFloat16>
void ScoreRows(const ScoreArgs& args, const std::byte* const* entries, int64_t first, int64_t last,
               float* scores, ReadAhead& ahead) {
  ScoreKeys<R, KeysOfTile(R), kIsBFloat16>(args, entries, first, last, scores, ahead);
}

template <bool kIsBFloat16>
void Scores(const EntryBlock& block) {
  constexpr void (*kRows[kTileRows])(const ScoreArgs&, const std::byte* const*, int64_t, int64_t,
                                     float*, ReadAhead&) = {
      ScoreRows<1, kIsBFloat16>, ScoreRows<2, kIsBFloat16>, ScoreRows<3, kIsBFloat16>,
      ScoreRows<4, kIsBFloat16>, ScoreRows<5, kIsBFloat16>, ScoreRows<6, kIsBFloat16>};
  int64_t steps = 0;  // tiles of full size per kScoreKeys
  for (int64_t g = 0; g < block.num_groups; ++g) {
    const RowTiles tiles(block.groups[g].rows, kTileRows);
    steps += tiles.count * (kScoreKeys / KeysOfTile(tiles.rows / tiles.count));
  }
  ScoreArgs args = {.q = nullptr,
                    .q_stride = block.QueryLanes(),
                    .own = 0,
                    .own_width = PaddedPart(block.own_width),
                    .shared = block.shared,
                    .shared_width = PaddedPart(block.shared_width),
                    .scale = block.scale,
                    .stride = ScoreStride(block.rows)};
  for (int64_t first = 0; first < block.num_keys; first += kScoreKeys) {
    const int64_t last = Least(first + kScoreKeys, block.num_keys);
    ReadAhead ahead(block, last, kScoreKeys, kIsBFloat16 ? 2 : 4, steps);
    int64_t r = 0;
    for (int64_t g = 0; g < block.num_groups; ++g) {
      const RowTiles tiles(block.groups[g].rows, kTileRows);
      args.own = block.groups[g].key;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t rows = tiles.First(tile + 1) - tiles.First(tile);
        int64_t keys = 0;
        for (int64_t i = r; i < r + rows; ++i) keys = Most(keys, block.visible[i]);
        args.q = block.lanes + r * args.q_stride;
        kRows[rows - 1](args, block.entries, first, Least(last, keys), block.scores + r, ahead);
        r += rows;
      }
    }
  }
}

struct OutputArgs {
  const float* p;  // of the tile's first row
  int64_t stride;
  const std::byte* const* entries;
  int64_t element;  // first element of an entry
  int64_t columns;
  int64_t ahead;  // bytes from a value to what is fetched along with it
  float* out;     // row 0, at the first column
  int64_t out_stride;
};

/// out[r] (+)= sum over keys t in [first, last) of p[t][r] * value[t], for R rows and G times 16
/// columns from column c on.
template <int R, int G, bool kIsBFloat16>
inline __attribute__((always_inline)) void OutputTile(const OutputArgs& args, int64_t c,
                                                      int64_t first, int64_t last, bool from_zero) {
  __m256 acc[R][G][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      acc[r][g][0] = _mm256_setzero_ps();
      acc[r][g][1] = _mm256_setzero_ps();
      if (!from_zero) {
        LoadLanes<kIsBFloat16>(args.out + r * args.out_stride + c + g * kStep, acc[r][g][0],
                               acc[r][g][1]);
      }
    }
  }
  const int64_t stride = args.stride;
  const int64_t element = args.element + c;
  constexpr int64_t kElementBytes = kIsBFloat16 ? 2 : 4;
  const int64_t ahead = args.ahead + element * kElementBytes;
  const float* p = args.p + first * stride;
  const std::byte* const* entry = args.entries + first;
  for (const std::byte* const* end = args.entries + last; entry < end; ++entry, p += stride) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      __m256 v0;
      __m256 v1;
      if constexpr (R <= 4) {
        BothElements<kIsBFloat16>(*entry, element + g * kStep, v0, v1);
      } else {
        v0 = Elements<kIsBFloat16, 0>(*entry, element + g * kStep);
        v1 = Elements<kIsBFloat16, 1>(*entry, element + g * kStep);
      }
      if (g * kStep * kElementBytes % 64 == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(*entry) + ahead + g * kStep * kElementBytes,
                     _MM_HINT_T0);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 pr = _mm256_broadcast_ss(p + r);
        MultiplyAdd(pr, v0, acc[r][g][0]);
        MultiplyAdd(pr, v1, acc[r][g][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      StoreLanes<kIsBFloat16>(acc[r][g][0], acc[r][g][1],
                              args.out + r * args.out_stride + c + g * kStep);
    }
  }
}

/// All columns of `args`; few rows take several vectors at once, to have enough chains.
template <int R, bool kIsBFloat16>
void OutputRows(const OutputArgs& args, int64_t first, int64_t last, bool from_zero) {
  constexpr int kGroups = R == 1 ? 4 : R == 2 ? 2 : 1;
  int64_t c = 0;
  for (; c + kGroups * kStep <= args.columns; c += kGroups * kStep) {
    OutputTile<R, kGroups, kIsBFloat16>(args, c, first, last, from_zero);
  }
  for (; c < args.columns; c += kStep) {
    OutputTile<R, 1, kIsBFloat16>(args, c, first, last, from_zero);
  }
}

template <bool kIsBFloat16>
void Output(const EntryBlock& block, int64_t stride) {
  constexpr void (*kTiles[kTileRows])(const OutputArgs&, int64_t, int64_t, bool) = {
      OutputRows<1, kIsBFloat16>, OutputRows<2, kIsBFloat16>, OutputRows<3, kIsBFloat16>,
      OutputRows<4, kIsBFloat16>, OutputRows<5, kIsBFloat16>, OutputRows<6, kIsBFloat16>};
  constexpr int64_t kElementBytes = kIsBFloat16 ? 2 : 4;
  constexpr int64_t kColumns = 128 / kElementBytes;
  for (int64_t first = 0; first < block.num_keys; first += kOutputKeys) {
    const int64_t last = Least(first + kOutputKeys, block.num_keys);
    int64_t group_row = 0;
    for (int64_t g = 0; g < block.num_groups; ++g) {
      const EntryGroup& group = block.groups[g];
      const RowTiles tiles(group.rows, kTileRows);
      for (int64_t column = 0; column < block.value_width; column += kColumns) {
        const int64_t columns = Least(kColumns, block.value_width - column);
        // The next columns, then the next group's first ones.
        int64_t next = group.value + column + columns;
        if (column + columns == block.value_width && g + 1 < block.num_groups) {
          next = block.groups[g + 1].value;
        }
        for (int64_t tile = 0; tile < tiles.count; ++tile) {
          const int64_t r = group_row + tiles.First(tile);
          const int64_t rows = tiles.First(tile + 1) - tiles.First(tile);
          int64_t shared = last;
          for (int64_t i = r; i < r + rows; ++i) shared = Least(shared, block.visible[i]);
          OutputArgs args = {.p = block.scores + r,
                             .stride = stride,
                             .entries = block.entries,
                             .element = group.value + column,
                             .columns = columns,
                             .ahead = (next - group.value - column) * kElementBytes,
                             .out = block.out + r * block.out_stride + column,
                             .out_stride = block.out_stride};
          if (first < shared || first == 0) kTiles[rows - 1](args, first, shared, first == 0);
          // Keys that only some of the rows see must not touch the others, not even times zero.
          for (int64_t i = r; i < r + rows; ++i, ++args.p, args.out += block.out_stride) {
            const int64_t own = Least(last, block.visible[i]);
            if (own > shared && own > first) kTiles[0](args, Most(first, shared), own, false);
          }
        }
      }
      group_row += group.rows;
    }
  }
}

template <bool kIsBFloat16>
void Attend(const EntryBlock& block) {
  const int64_t stride = ScoreStride(block.rows);
  ArrangeQueries<kIsBFloat16>(block);
  Scores<kIsBFloat16>(block);
  for (int64_t r = 0; r < block.rows; r += kRowLanes) Softmax(block, r, stride);
  Output<kIsBFloat16>(block, stride);
}

}  // namespace

void AttendEntries(const EntryBlock& block) {
  if (block.dtype == DType::kBF16) {
    Attend<true>(block);
  } else {
    Attend<false>(block);
  }
}

}  // namespace outrider::cpu::avx2
