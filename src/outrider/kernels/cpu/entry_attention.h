// Attention over one split of cache entries, written once for vectors of any width (include in
// leaves only). Longer than most files: scores, softmax and outputs share its layouts.
//
// Entries are read where they lie in the cache. A vector of bfloat16 arrives as half as many 32-bit
// lanes: shifted left they are the elements of even index, masked those of odd index, so queries
// and sums are kept in that order ("lane order") and no widened copy of an entry is ever stored.
//
// Scores: a tile of rows and keys keeps a sum of one vector per row and key; a lane takes its
// elements in rising order, then the lanes are added in a tree. Scores lie as [key][row], so that
// the softmax runs down the keys with one row per lane: the sum of the weights is four
// chains, one per key % 4, added in a tree. Output: a tile of rows and columns adds p_t e_t in
// order of the keys. None of these orders depends on the other rows, so neither do a row's bits.
//
// What an instruction set brings is a class `Isa`, local to its leaf file:
//   Vector, kLanes         float32 lanes; 2 * kLanes elements of an entry arrive together
//   kTileRows              rows of the largest tile
//   KeysOfTile(rows)       keys of a score tile: enough chains to hide the latency of an FMA, few
//                          enough for the registers
//   GroupsOfTile(rows)     vector pairs of columns of an output tile
//   kScoreKeys             keys that stay in L1 while all row tiles take their scores
//   kColumnBytes           bytes of a value that row tiles pass over together
//   Zero, Load (aligned), Broadcast, MultiplyAdd(a, b, sum), SumsOfLanes   e.g. avx2::EightLanes
//   Elements<kIsBFloat16, kParity>(entry, i)   elements [i, i + 2 * kLanes) of an entry: those of
//                          even index in lane order (parity 0), or of odd index; of float32 the
//                          first or the second half
//   BothElements<kIsBFloat16>(entry, i, even, odd)   both at once, where registers are left
//   LoadLanes, StoreLanes<kIsBFloat16>   between the order of memory and lane order
//   kDots                  bfloat16 is multiplied as it is, pair by pair: then queries are kept so,
//                          by RoundPart(q, width, lanes), and scores take AddDots in place of
//                          MultiplyAdd; PairWeights(block, stride) lays the weights of two keys
//                          side by side, and OutputRows<R> takes two keys at a time, as the
//                          function of that name below takes one
#pragma once

#include <immintrin.h>

#include <array>
#include <utility>

#include "outrider/kernels/cpu/avx2/entry_softmax.h"
#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu {
// One copy per leaf file: these must not become shared symbols with one instruction set's code.
namespace {  // NOLINT(google-build-namespaces)

using avx2::Least;
using avx2::Most;
using avx2::ReadAhead;
using avx2::RowTiles;

// Keys whose values stay in L1 while all row tiles pass over a line of columns.
constexpr int64_t kOutputKeys = 128;

/// `width` floats in lane order, rounded as entries are, padded with zeros.
template <typename Isa, bool kIsBFloat16>
void ArrangePart(const float* q, int64_t width, float* lanes) {
  constexpr int64_t kStep = 2 * Isa::kLanes;
  for (int64_t i = 0; i < PaddedPart(width); i += kStep) {
    float part[kStep];
    const float* from = q + i;
    if (width - i < kStep) {
      for (int64_t j = 0; j < kStep; ++j) part[j] = j < width - i ? from[j] : 0;
      from = part;
    }
    if constexpr (kIsBFloat16) {
      for (int64_t j = 0; j < kStep; j += 8) {
        _mm256_storeu_ps(part + j, avx2::RoundToBFloat16(_mm256_loadu_ps(from + j)));
      }
      from = part;
    }
    typename Isa::Vector first;
    typename Isa::Vector second;
    Isa::template LoadLanes<kIsBFloat16>(from, first, second);
    Isa::Store(lanes + i, first);
    Isa::Store(lanes + i + Isa::kLanes, second);
  }
}

/// How many floats hold `elements` elements of a query.
template <typename Isa>
constexpr int64_t LanesOf(int64_t elements) {
  return Isa::kDots ? elements / 2 : elements;
}

template <typename Isa, bool kIsBFloat16>
void ArrangeQueries(const EntryBlock& block) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* own = block.lanes + r * block.QueryLanes();
    float* shared = own + LanesOf<Isa>(PaddedPart(block.own_width));
    if constexpr (Isa::kDots) {
      Isa::RoundPart(block.q[r], block.own_width, own);
      Isa::RoundPart(block.q[r] + block.own_width, block.shared_width, shared);
    } else {
      ArrangePart<Isa, kIsBFloat16>(block.q[r], block.own_width, own);
      ArrangePart<Isa, kIsBFloat16>(block.q[r] + block.own_width, block.shared_width, shared);
    }
  }
}

/// acc[t][r] += products of q[r] and entries[t] at the elements of one parity from i on.
template <typename Isa, int R, int T, bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) void AddParity(const float* q, int64_t q_stride,
                                                     const std::byte* const (&entries)[T],
                                                     int64_t i, typename Isa::Vector (&acc)[T][R]) {
  typename Isa::Vector k[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) k[t] = Isa::template Elements<kIsBFloat16, kParity>(entries[t], i);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Isa::Vector qr = Isa::Load(q + r * q_stride + kParity * Isa::kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) Isa::MultiplyAdd(qr, k[t], acc[t][r]);
    // Or the compiler reads all of q early, and has too few registers for the sums.
    asm volatile("" ::: "memory");
  }
}

/// acc[t][r] += products of q[r] and entries[t] at the elements from i on, all of them.
template <typename Isa, int R, int T, bool kIsBFloat16>
inline __attribute__((always_inline)) void AddScores(const float* q, int64_t q_stride,
                                                     const std::byte* const (&entries)[T],
                                                     int64_t i, typename Isa::Vector (&acc)[T][R]) {
  if constexpr (Isa::kDots) {
    typename Isa::Elements k[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) k[t] = Isa::Load(entries[t] + i * 2);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Isa::Elements qr = Isa::Load(q + r * q_stride);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) Isa::AddDots(qr, k[t], acc[t][r]);
      asm volatile("" ::: "memory");  // as above
    }
  } else if constexpr (R > 2) {
    AddParity<Isa, R, T, kIsBFloat16, 0>(q, q_stride, entries, i, acc);
    AddParity<Isa, R, T, kIsBFloat16, 1>(q, q_stride, entries, i, acc);
  } else {
    // There are registers for both parities of an entry: it is loaded once.
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      typename Isa::Vector even;
      typename Isa::Vector odd;
      Isa::template BothElements<kIsBFloat16>(entries[t], i, even, odd);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        Isa::MultiplyAdd(Isa::Load(q + r * q_stride), even, acc[t][r]);
        Isa::MultiplyAdd(Isa::Load(q + r * q_stride + Isa::kLanes), odd, acc[t][r]);
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
template <typename Isa, int R, int T, bool kIsBFloat16>
void ScoreTile(const ScoreArgs& args, const std::byte* const* entries, float* scores) {
  typename Isa::Vector acc[T][R];
  constexpr int64_t kStep = 2 * Isa::kLanes;
  const std::byte* entry[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    entry[t] = entries[t];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[t][r] = Isa::Zero();
  }
  const float* q = args.q;
  const int64_t q_stride = args.q_stride;
  const int64_t own_end = args.own + args.own_width;
  for (int64_t i = args.own; i < own_end; i += kStep, q += LanesOf<Isa>(kStep)) {
    AddScores<Isa, R, T, kIsBFloat16>(q, q_stride, entry, i, acc);
  }
  const int64_t shared_end = args.shared + args.shared_width;
  for (int64_t i = args.shared; i < shared_end; i += kStep, q += LanesOf<Isa>(kStep)) {
    AddScores<Isa, R, T, kIsBFloat16>(q, q_stride, entry, i, acc);
  }
  const __m128 scale4 = _mm_set1_ps(args.scale);
  if constexpr (R == 1 && T % 4 == 0) {
#pragma GCC unroll 8
    for (int t = 0; t < T; t += 4) {
      const __m128 dots = Isa::SumsOfLanes(acc[t][0], acc[t + 1][0], acc[t + 2][0], acc[t + 3][0]);
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
      const __m128 dots =
          Isa::SumsOfLanes(acc[t][r], acc[t][r + 1 < R ? r + 1 : r], acc[t][r + 2 < R ? r + 2 : r],
                           acc[t][r + 3 < R ? r + 3 : r]);
      _mm_storeu_ps(scores + t * args.stride + r, _mm_mul_ps(dots, scale4));
    }
  }
}

/// Keys [first, last) for R rows, in tiles of T keys, the rest in smaller ones.
template <typename Isa, int R, int T, bool kIsBFloat16>
inline void ScoreKeys(const ScoreArgs& args, const std::byte* const* entries, int64_t first,
                      int64_t last, float* scores, ReadAhead& ahead) {
  for (; first + T <= last; first += T) {
    ahead.Step();
    ScoreTile<Isa, R, T, kIsBFloat16>(args, entries + first, scores + first * args.stride);
  }
  if constexpr (T > 1) {
    ScoreKeys<Isa, R, T / 2, kIsBFloat16>(args, entries, first, last, scores, ahead);
  }
}

using ScoreRows = void (*)(const ScoreArgs&, const std::byte* const*, int64_t, int64_t, float*,
                           ReadAhead&);

/// For 1 to kTileRows rows, in tiles of as many keys as go with them.
template <typename Isa, bool kIsBFloat16, int... kRows>
constexpr std::array<ScoreRows, sizeof...(kRows)> ScoreTiles(
    std::integer_sequence<int, kRows...> /*rows*/) {
  return {ScoreKeys<Isa, kRows + 1, Isa::KeysOfTile(kRows + 1), kIsBFloat16>...};
}

template <typename Isa, bool kIsBFloat16>
void Scores(const EntryBlock& block) {
  constexpr auto kTiles =
      ScoreTiles<Isa, kIsBFloat16>(std::make_integer_sequence<int, Isa::kTileRows>());
  int64_t steps = 0;  // tiles of full size per kScoreKeys
  for (int64_t g = 0; g < block.num_groups; ++g) {
    const RowTiles tiles(block.groups[g].rows, Isa::kTileRows);
    steps += tiles.count * (Isa::kScoreKeys / Isa::KeysOfTile(tiles.rows / tiles.count));
  }
  ScoreArgs args = {.q = nullptr,
                    .q_stride = block.QueryLanes(),
                    .own = 0,
                    .own_width = PaddedPart(block.own_width),
                    .shared = block.shared,
                    .shared_width = PaddedPart(block.shared_width),
                    .scale = block.scale,
                    .stride = ScoreStride(block.rows)};
  for (int64_t first = 0; first < block.num_keys; first += Isa::kScoreKeys) {
    const int64_t last = Least(first + Isa::kScoreKeys, block.num_keys);
    const bool ends = last == block.num_keys;
    ReadAhead ahead(block, ends ? block.next_entries : block.entries + last,
                    Least(Isa::kScoreKeys, ends ? block.num_next : block.num_keys - last),
                    kIsBFloat16 ? 2 : 4, steps);
    int64_t r = 0;
    for (int64_t g = 0; g < block.num_groups; ++g) {
      const RowTiles tiles(block.groups[g].rows, Isa::kTileRows);
      args.own = block.groups[g].key;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t rows = tiles.First(tile + 1) - tiles.First(tile);
        int64_t keys = 0;
        for (int64_t i = r; i < r + rows; ++i) keys = Most(keys, block.visible[i]);
        args.q = block.lanes + r * args.q_stride;
        kTiles[rows - 1](args, block.entries, first, Least(last, keys), block.scores + r, ahead);
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

/// out[r] (+)= sum over keys t in [first, last) of p[t][r] * value[t], for R rows and G pairs of
/// vectors of columns from column c on.
template <typename Isa, int R, int G, bool kIsBFloat16>
inline __attribute__((always_inline)) void OutputTile(const OutputArgs& args, int64_t c,
                                                      int64_t first, int64_t last, bool from_zero) {
  using Vector = typename Isa::Vector;
  constexpr int64_t kStep = 2 * Isa::kLanes;
  Vector acc[R][G][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      acc[r][g][0] = Isa::Zero();
      acc[r][g][1] = Isa::Zero();
      if (!from_zero) {
        Isa::template LoadLanes<kIsBFloat16>(args.out + r * args.out_stride + c + g * kStep,
                                             acc[r][g][0], acc[r][g][1]);
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
      Vector v0;
      Vector v1;
      if constexpr (R <= 4) {
        Isa::template BothElements<kIsBFloat16>(*entry, element + g * kStep, v0, v1);
      } else {
        v0 = Isa::template Elements<kIsBFloat16, 0>(*entry, element + g * kStep);
        v1 = Isa::template Elements<kIsBFloat16, 1>(*entry, element + g * kStep);
      }
      constexpr int64_t kStepBytes = kStep * kElementBytes;
#pragma GCC unroll 4
      for (int64_t line = g * kStepBytes; line < (g + 1) * kStepBytes; line += 64) {
        if (line % 64 == 0) {
          _mm_prefetch(reinterpret_cast<const char*>(*entry) + ahead + line, _MM_HINT_T0);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vector pr = Isa::Broadcast(p + r);
        Isa::MultiplyAdd(pr, v0, acc[r][g][0]);
        Isa::MultiplyAdd(pr, v1, acc[r][g][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      Isa::template StoreLanes<kIsBFloat16>(acc[r][g][0], acc[r][g][1],
                                            args.out + r * args.out_stride + c + g * kStep);
    }
  }
}

/// All columns of `args`; few rows take several vectors at once, to have enough chains.
template <typename Isa, int R, bool kIsBFloat16>
void OutputRows(const OutputArgs& args, int64_t first, int64_t last, bool from_zero) {
  constexpr int kGroups = Isa::GroupsOfTile(R);
  constexpr int64_t kStep = 2 * Isa::kLanes;
  int64_t c = 0;
  for (; c + kGroups * kStep <= args.columns; c += kGroups * kStep) {
    OutputTile<Isa, R, kGroups, kIsBFloat16>(args, c, first, last, from_zero);
  }
  for (; c < args.columns; c += kStep) {
    OutputTile<Isa, R, 1, kIsBFloat16>(args, c, first, last, from_zero);
  }
}

using OutputRowsOf = void (*)(const OutputArgs&, int64_t, int64_t, bool);

/// For 1 to kTileRows rows.
template <typename Isa, bool kIsBFloat16, int... kRows>
constexpr std::array<OutputRowsOf, sizeof...(kRows)> OutputTiles(
    std::integer_sequence<int, kRows...> /*rows*/) {
  if constexpr (Isa::kDots) {
    return {Isa::template OutputRows<kRows + 1>...};
  } else {
    return {OutputRows<Isa, kRows + 1, kIsBFloat16>...};
  }
}

template <typename Isa, bool kIsBFloat16>
void Output(const EntryBlock& block, int64_t stride) {
  constexpr auto kTiles =
      OutputTiles<Isa, kIsBFloat16>(std::make_integer_sequence<int, Isa::kTileRows>());
  constexpr int64_t kElementBytes = kIsBFloat16 ? 2 : 4;
  constexpr int64_t kColumns = Isa::kColumnBytes / kElementBytes;
  for (int64_t first = 0; first < block.num_keys; first += kOutputKeys) {
    const int64_t last = Least(first + kOutputKeys, block.num_keys);
    int64_t group_row = 0;
    for (int64_t g = 0; g < block.num_groups; ++g) {
      const EntryGroup& group = block.groups[g];
      const RowTiles tiles(group.rows, Isa::kTileRows);
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
          if (Isa::kDots && shared < last) shared = shared / 2 * 2;  // whole pairs
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

template <typename Isa, bool kIsBFloat16>
void AttendAs(const EntryBlock& block) {
  const int64_t stride = ScoreStride(block.rows);
  if (block.packs_queries) ArrangeQueries<Isa, kIsBFloat16>(block);
  Scores<Isa, kIsBFloat16>(block);
  for (int64_t r = 0; r < block.rows; r += kRowLanes) avx2::Softmax<kIsBFloat16>(block, r, stride);
  if constexpr (Isa::kDots) Isa::PairWeights(block, stride);
  Output<Isa, kIsBFloat16>(block, stride);
}

/// LeafKernels::attend_entries with the vectors of `Isa`.
template <typename Isa>
void Attend(const EntryBlock& block) {
  if (block.dtype == DType::kBF16) {
    AttendAs<Isa, true>(block);
  } else {
    AttendAs<Isa, false>(block);
  }
}

}  // namespace
}  // namespace outrider::cpu
