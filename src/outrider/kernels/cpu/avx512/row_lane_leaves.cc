// Attention over one split of cache entries that all rows attend to alike, with sixteen rows to a
// vector.
//
// Scores and outputs are sums of outer products, and one tile serves both: up to kSums vectors of
// sums, to which a step adds the products of some broadcast floats and some vectors. For scores a
// step is an element of the keys: that of every key, broadcast, times a vector of queries, one to a
// lane. For outputs it is a key: the weight of every row, broadcast, times a part of its value. So
// a score is one chain of FMAs over the elements in rising order, an output one over the keys, and
// no lanes are added up: no row's bits depend on the others.
//
// Every block of entries is widened to float32 in L1 once for all rows.

#include <immintrin.h>

#include <array>
#include <utility>

#include "outrider/kernels/cpu/avx2/entry_softmax.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512/vectors.h"

namespace outrider::cpu::avx512 {

namespace {

using avx2::Least;
using avx2::Most;
using avx2::RowTiles;

constexpr int kSums = 24;
// Keys and elements of a block for scores, keys and columns of a block for outputs.
constexpr int64_t kScoreKeys = kSums;  // whole tiles of any number of vectors
constexpr int64_t kDepth = 96;
constexpr int64_t kOutputKeys = 64;
constexpr int64_t kColumns = 64;
// Vectors of queries, of which a tile takes all that there are, and of values of a tile.
constexpr int64_t kQueryVectors = 4;
constexpr int kValueVectors = 2;
constexpr int64_t kValueColumns = 16 * kValueVectors;

struct TileArgs {
  const float* broadcasts;  // that of sum b in step i at b * kStride + i * broadcast_step
  int64_t broadcast_step;
  const float* vectors;  // of step i at i * vector_step
  int64_t vector_step;
  int64_t steps;
  float* sums;  // a row of V vectors for every broadcast
  int64_t sums_stride;
  bool from_zero;
  float factor;  // of the sums in the end
  // Prefetches into L2 meanwhile: `lines` cache lines of each entry, from byte `first` on.
  const std::byte* const* entries = nullptr;
  int64_t num_entries = 0;
  int64_t first = 0;
  int64_t lines = 0;
};

/// One step of a tile.
template <int B, int V, int64_t kStride>
inline __attribute__((always_inline)) void AddProduct(const float* broadcasts, const float* vectors,
                                                      __m512 (&acc)[B][V]) {
  __m512 x[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) x[v] = _mm512_loadu_ps(vectors + v * 16);
#pragma GCC unroll 24
  for (int b = 0; b < B; ++b) {
    const float* y = broadcasts + b * kStride;
    if constexpr (V == 1) {
      asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc[b][0]) : "v"(x[0]), "m"(*y));
    } else {
      const __m512 y16 = _mm512_set1_ps(*y);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) MultiplyAdd(y16, x[v], acc[b][v]);
      // Or the compiler reads all of them early, and has too few registers for the sums.
      asm volatile("" ::: "memory");
    }
  }
}

/// sums[b][v] (+)= sum over i of broadcasts[b, i] * vectors[i][v], then times the factor.
template <int B, int V, int64_t kStride>
void Tile(const TileArgs& args) {
  __m512 acc[B][V];
#pragma GCC unroll 24
  for (int b = 0; b < B; ++b) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      acc[b][v] = args.from_zero ? _mm512_setzero_ps()
                                 : _mm512_loadu_ps(args.sums + b * args.sums_stride + v * 16);
    }
  }
  const float* broadcasts = args.broadcasts;
  const float* vectors = args.vectors;
  const auto add = [&](int64_t steps) __attribute__((always_inline)) {
    for (; steps > 0; --steps) {
      AddProduct<B, V, kStride>(broadcasts, vectors, acc);
      broadcasts += args.broadcast_step;
      vectors += args.vector_step;
    }
  };
  const int64_t part = args.num_entries == 0 ? 0 : args.steps / args.num_entries;
  for (int64_t i = 0; i < args.num_entries; ++i) {
    const auto* from = reinterpret_cast<const char*>(args.entries[i] + args.first);
    for (int64_t line = 0; line < args.lines; ++line) _mm_prefetch(from + line * 64, _MM_HINT_T1);
    add(part);
  }
  add(args.steps - part * args.num_entries);
  const __m512 factor = _mm512_set1_ps(args.factor);
#pragma GCC unroll 24
  for (int b = 0; b < B; ++b) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      _mm512_storeu_ps(args.sums + b * args.sums_stride + v * 16, _mm512_mul_ps(acc[b][v], factor));
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

template <int V, int64_t kStride, int... kCounts>
constexpr std::array<TileFunction, sizeof...(kCounts)> Tiles(
    std::integer_sequence<int, kCounts...> /*counts*/) {
  return {Tile<kCounts + 1, V, kStride>...};
}
/// Tiles of V vectors by the number of broadcasts - 1.
template <int V, int64_t kStride>
constexpr std::array kTiles = Tiles<V, kStride>(std::make_integer_sequence<int, kSums / V>());

/// kEntryLanes bfloat16 as float32.
inline __attribute__((always_inline)) void Widen(const std::byte* from, float* to) {
  // Every other 16-bit lane is zero, the others come from the first half or from the second.
  const __m512i low = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0,
                                       6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  constexpr __mmask32 kUpper = 0xaaaaaaaa;
  const __m512i both = _mm512_loadu_si512(from);
  _mm512_store_si512(to, _mm512_maskz_permutexvar_epi16(kUpper, low, both));
  _mm512_store_si512(to + 16, _mm512_maskz_permutexvar_epi16(kUpper, high, both));
}

/// Writes elements [first, first + count) of each entry as float32, kMost floats from one entry to
/// the next. count is at most kMost; first, count and kMost are multiples of kEntryLanes.
template <bool kIsBFloat16, int64_t kMost>
void WidenBlock(const std::byte* const* entries, int64_t num_entries, int64_t first, int64_t count,
                float* to) {
  const auto widen = [&](const std::byte* entry, int64_t i) __attribute__((always_inline)) {
    if constexpr (kIsBFloat16) {
      Widen(entry + (first + i) * 2, to + i);
    } else {
      const auto* from = reinterpret_cast<const float*>(entry) + first + i;
      _mm512_store_ps(to + i, _mm512_loadu_ps(from));
      _mm512_store_ps(to + i + 16, _mm512_loadu_ps(from + 16));
    }
  };
  for (const auto* end = entries + num_entries; entries < end; ++entries, to += kMost) {
    if (count == kMost) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kMost; i += kEntryLanes) widen(*entries, i);
    } else {
      for (int64_t i = 0; i < count; i += kEntryLanes) widen(*entries, i);
    }
  }
}

/// The queries, rounded as entries are: for each element the vectors of all rows, one after the
/// other. Lanes without a row are zero.
template <bool kIsBFloat16>
void ArrangeRows(const EntryBlock& block) {
  const int64_t lanes = PaddedWidth(block.rows);
  for (int64_t i = 0; i < PaddedPart(block.own_width); i += 8) {
    const avx2::Lanes elements(Least(8, Most(0, block.own_width - i)));
    for (int64_t lane = 0; lane < lanes; lane += 8) {
      __m256 part[8];
      for (int64_t j = 0; j < 8; ++j) {
        const int64_t row = lane + j;
        part[j] = row < block.rows ? elements.Load(block.q[row] + i) : _mm256_setzero_ps();
        if (kIsBFloat16) part[j] = avx2::RoundToBFloat16(part[j]);
      }
      avx2::Transpose(part);
      for (int64_t j = 0; j < 8; ++j) {
        _mm256_store_ps(block.lanes + (i + j) * lanes + lane, part[j]);
      }
    }
  }
}

/// A block of keys for V vectors of rows, in even tiles.
template <int V>
void ScoreKeys(TileArgs args, int64_t keys) {
  const RowTiles tiles(keys, kSums / V);
  for (int64_t tile = 0; tile < tiles.count; ++tile) {
    const int64_t count = tiles.First(tile + 1) - tiles.First(tile);
    args.num_entries = count;
    kTiles<V, kDepth>[static_cast<size_t>(count - 1)](args);
    args.broadcasts += count * kDepth;
    args.sums += count * args.sums_stride;
    args.entries += count;
  }
}

template <bool kIsBFloat16>
void Scores(const EntryBlock& block, int64_t stride) {
  using KeyScores = void (*)(TileArgs, int64_t);
  constexpr std::array<KeyScores, kQueryVectors> kScores = {ScoreKeys<1>, ScoreKeys<2>,
                                                            ScoreKeys<3>, ScoreKeys<4>};
  constexpr int64_t kElementBytes = kIsBFloat16 ? 2 : 4;
  alignas(64) float widened[kScoreKeys * kDepth];
  const int64_t width = PaddedPart(block.own_width);
  const int64_t key = block.groups[0].key;
  const int64_t lanes = PaddedWidth(block.rows);
  for (int64_t first = 0; first < block.num_keys; first += kScoreKeys) {
    const int64_t keys = Least(kScoreKeys, block.num_keys - first);
    const std::byte* const* entries = block.entries + first;
    // The entries that follow are fetched, if they are as many.
    const int64_t left = block.num_keys - first - keys;
    const bool follow = (left > 0 ? left : block.num_next) >= keys;
    const std::byte* const* next = left > 0 ? entries + keys : block.next_entries;
    for (int64_t element = 0; element < width; element += kDepth) {
      const int64_t depth = Least(kDepth, width - element);
      WidenBlock<kIsBFloat16, kDepth>(entries, keys, key + element, depth, widened);
      kScores[static_cast<size_t>(lanes / 16 - 1)](
          {.broadcasts = widened,
           .broadcast_step = 1,
           .vectors = block.lanes + element * lanes,
           .vector_step = lanes,
           .steps = depth,
           .sums = block.scores + first * stride,
           .sums_stride = stride,
           .from_zero = element == 0,
           .factor = element + depth == width ? block.scale : 1.0F,
           .entries = follow ? next : entries,
           .first = (key + element) * kElementBytes,
           .lines = follow ? depth * kElementBytes / 64 : 0},
          keys);
    }
  }
}

template <bool kIsBFloat16>
void Outputs(const EntryBlock& block, int64_t stride) {
  constexpr const auto& kRowTiles = kTiles<kValueVectors, 1>;
  alignas(64) float widened[kOutputKeys * kColumns];
  const RowTiles tiles(block.rows, kRowTiles.size());
  for (int64_t first = 0; first < block.num_keys; first += kOutputKeys) {
    const int64_t last = Least(first + kOutputKeys, block.num_keys);
    for (int64_t column = 0; column < block.value_width; column += kColumns) {
      const int64_t columns = Least(kColumns, block.value_width - column);
      WidenBlock<kIsBFloat16, kColumns>(block.entries + first, last - first,
                                        block.groups[0].value + column, columns, widened);
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t row = tiles.First(tile);
        const int64_t end = tiles.First(tile + 1);
        int64_t shared = last;
        for (int64_t r = row; r < end; ++r) shared = Least(shared, block.visible[r]);
        for (int64_t c = 0; c < columns; c += kValueColumns) {
          // To rows from r on the products of keys [from, to).
          const auto add = [&](TileFunction add_products, int64_t r, int64_t from, int64_t to) {
            add_products({.broadcasts = block.scores + from * stride + r,
                          .broadcast_step = stride,
                          .vectors = widened + (from - first) * kColumns + c,
                          .vector_step = kColumns,
                          .steps = to - from,
                          .sums = block.out + r * block.out_stride + column + c,
                          .sums_stride = block.out_stride,
                          .from_zero = from == 0,
                          .factor = 1.0F});
          };
          if (first < shared) {
            add(kRowTiles[static_cast<size_t>(end - row - 1)], row, first, shared);
          }
          // Keys that only some of the rows see must not touch the others, not even times zero.
          for (int64_t r = row; r < end; ++r) {
            const int64_t own = Least(last, block.visible[r]);
            const int64_t from = Most(first, shared);
            if (own > from) add(kRowTiles[0], r, from, own);
          }
        }
      }
    }
  }
}

template <bool kIsBFloat16>
void Attend(const EntryBlock& block) {
  const int64_t stride = RowScoreStride(block.rows);
  if (block.packs_queries) ArrangeRows<kIsBFloat16>(block);
  Scores<kIsBFloat16>(block, stride);
  for (int64_t r = 0; r < block.rows; r += kRowLanes) avx2::Softmax<kIsBFloat16>(block, r, stride);
  Outputs<kIsBFloat16>(block, stride);
}

}  // namespace

void AttendInRowLanes(const EntryBlock& block) {
  if (block.dtype == DType::kBF16) {
    Attend<true>(block);
  } else {
    Attend<false>(block);
  }
}

}  // namespace outrider::cpu::avx512
