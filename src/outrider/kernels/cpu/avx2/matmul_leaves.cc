// Panel products with AVX2 and FMA.
//
// A tile is R rows of x times P panels of 16 outputs, its R * P * 2 sums in registers. Each sum is
// one chain of FMAs over k, which alone would wait 4 cycles per k: a tile therefore holds eight
// independent chains or so, by more panels where rows are few (three_panel_tile.h has a better tile
// for short panels). A bfloat16 pair of k's arrives as one 32-bit lane per output; shifted left it
// is the even k, masked it is the odd one, so the widened weights never touch memory.
//
// Up to kRowTile rows one tile covers all rows and the weights stream through once. For more rows,
// k runs in blocks of kBlock: the block of a panel stays in L1 while the row tiles pass over it,
// and the sums wait in memory between blocks, as float32, which keeps the chain (and its bits) the
// same.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/three_panel_tile.h"
#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx2 {

namespace {

// Rows up to which all sums stay in registers and each panel is read once, in one go.
constexpr int64_t kRowTile = 6;
constexpr int64_t kBlock = 256;  // k's per block, even
// Read ahead of the multiplication, for products of one row tile: over the streams of a tile, and
// in the one stream of a tile of one panel.
constexpr int64_t kReadAheadBytes = 8192;
constexpr int64_t kReadAheadOneStream = 2048;
// That alone keeps too few reads from memory in flight: every tile also fetches into L2 from this
// far, over its streams.
constexpr int64_t kReadFarAhead = 16384;

struct TileArgs {
  const std::byte* w;  // the first panel, at the tile's first k
  int64_t panel_bytes;
  const float* const* x;  // R pointers
  int64_t first_k;
  int64_t count_k;
  bool from_zero;  // else from sums
  float* sums;     // panel p, row r at sums + p * panel_sums + r * row_sums
  int64_t panel_sums;
  int64_t row_sums;
  const std::byte* prefetch;  // read ahead from here, prefetch_step bytes per pair of k's
  int64_t prefetch_step;
  const std::byte* far_prefetch;  // the same, into L2
};

inline void Prefetch(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

inline void PrefetchFar(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

/// The compiler would otherwise read all of x and both halves of a pair of k's early, and then have
/// too few registers for the sums.
inline __attribute__((always_inline)) void KeepLoadsInPlace() { asm volatile("" ::: "memory"); }

/// The 8 weights of one half of a panel at the even (parity 0) or odd k of a pair.
template <bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) __m256 Weights(const std::byte* pair, int half) {
  if constexpr (!kIsBFloat16) {
    return _mm256_load_ps(reinterpret_cast<const float*>(pair) + kParity * 16 + half * 8);
  } else {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair) + half);
    if constexpr (kParity == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(both, upper));
  }
}

/// Adds x[r][k] * W[n][k] to the sums of every row and panel, for one k of the pair at w.
template <int R, int P, bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) void AddProducts(const float* const (&x)[R], int64_t k,
                                                       const std::byte* w, int64_t panel_bytes,
                                                       __m256 (&acc)[R][P][2]) {
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const __m256 w0 = Weights<kIsBFloat16, kParity>(w + p * panel_bytes, 0);
    const __m256 w1 = Weights<kIsBFloat16, kParity>(w + p * panel_bytes, 1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 xk = _mm256_broadcast_ss(x[r] + k);
      MultiplyAdd(xk, w0, acc[r][p][0]);
      MultiplyAdd(xk, w1, acc[r][p][1]);
      KeepLoadsInPlace();
    }
  }
}

template <int R, int P, bool kIsBFloat16>
void Tile(const TileArgs& args) {
  __m256 acc[R][P][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const float* sums = args.sums + p * args.panel_sums + r * args.row_sums;
      acc[r][p][0] = args.from_zero ? _mm256_setzero_ps() : _mm256_loadu_ps(sums);
      acc[r][p][1] = args.from_zero ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + 8);
    }
  }
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = args.x[r] + args.first_k;

  const std::byte* w = args.w;
  const int64_t panel_bytes = args.panel_bytes;
  const std::byte* prefetch = args.prefetch;
  const int64_t prefetch_step = args.prefetch_step;
  const std::byte* far_prefetch = args.far_prefetch;
  const int64_t count_k = args.count_k;
  const int64_t pairs = count_k / 2;
  for (int64_t i = 0; i < pairs; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      Prefetch(prefetch + p * panel_bytes);
      PrefetchFar(far_prefetch + p * panel_bytes);
      if constexpr (!kIsBFloat16) {
        Prefetch(prefetch + p * panel_bytes + 64);
        PrefetchFar(far_prefetch + p * panel_bytes + 64);
      }
    }
    AddProducts<R, P, kIsBFloat16, 0>(x, 2 * i, w, panel_bytes, acc);
    AddProducts<R, P, kIsBFloat16, 1>(x, 2 * i + 1, w, panel_bytes, acc);
    w += kIsBFloat16 ? 64 : 128;
    prefetch += prefetch_step;
    far_prefetch += prefetch_step;
  }
  if (count_k % 2 != 0) {
    AddProducts<R, P, kIsBFloat16, 0>(x, 2 * pairs, w, panel_bytes, acc);
  }

#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      float* sums = args.sums + p * args.panel_sums + r * args.row_sums;
      _mm256_storeu_ps(sums, acc[r][p][0]);
      _mm256_storeu_ps(sums + 8, acc[r][p][1]);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

/// kTiles[format is bfloat16][rows - 1][panels - 1]. Three rows and two panels would be twelve
/// sums, but the compiler then moves some to the stack in every round: six in registers are faster.
constexpr TileFunction kTiles[2][6][4] = {
    {{Tile<1, 1, false>, Tile<1, 2, false>, Tile<1, 3, false>, Tile<1, 4, false>},
     {Tile<2, 1, false>, Tile<2, 2, false>, nullptr, nullptr},
     {Tile<3, 1, false>, nullptr, nullptr, nullptr},
     {Tile<4, 1, false>, nullptr, nullptr, nullptr},
     {Tile<5, 1, false>, nullptr, nullptr, nullptr},
     {Tile<6, 1, false>, nullptr, nullptr, nullptr}},
    {{Tile<1, 1, true>, Tile<1, 2, true>, Tile<1, 3, true>, Tile<1, 4, true>},
     {Tile<2, 1, true>, Tile<2, 2, true>, nullptr, nullptr},
     {Tile<3, 1, true>, nullptr, nullptr, nullptr},
     {Tile<4, 1, true>, nullptr, nullptr, nullptr},
     {Tile<5, 1, true>, nullptr, nullptr, nullptr},
     {Tile<6, 1, true>, nullptr, nullptr, nullptr}}};

/// Moves the finished sums of panel p of `product` to y; row r's are at sums + r * row_sums.
void Finish(const PanelProduct& product, int64_t p, const float* sums, int64_t row_sums = 16) {
  const int64_t count = product.columns - p * 16 < 16 ? product.columns - p * 16 : 16;
  for (int64_t r = 0; r < product.rows; ++r) {
    const float* from = sums + r * row_sums;
    float* y = product.y + r * product.y_stride + p * 16;
    if (count == 16) {
      __m256 low = _mm256_load_ps(from);
      __m256 high = _mm256_load_ps(from + 8);
      if (product.accumulate) {
        low = _mm256_add_ps(_mm256_loadu_ps(y), low);
        high = _mm256_add_ps(_mm256_loadu_ps(y + 8), high);
      }
      _mm256_storeu_ps(y, low);
      _mm256_storeu_ps(y + 8, high);
    } else {
      for (int64_t n = 0; n < count; ++n) y[n] = product.accumulate ? y[n] + from[n] : from[n];
    }
  }
}

/// How far ahead the streams of a tile read: each in its panel and, past the panel's end, in its
/// successor of a later tile.
struct ReadAhead {
  int64_t before;  // bytes from where a stream is, as long as that is
  int64_t pairs;   // less than so many pairs of k's into its panel
  int64_t after;   // bytes from there on

  const std::byte* From(const std::byte* w, int64_t pair, int64_t pair_bytes) const {
    return w + pair * pair_bytes + (pair < pairs ? before : after);
  }
};

/// `distance` bytes ahead over all streams of tiles of `panels` panels.
ReadAhead ReadAheadOf(const PanelProduct& product, int64_t panels, int64_t pair_bytes,
                      int64_t distance) {
  // One stream goes on where a panel ends.
  if (panels == 1) return {.before = distance, .pairs = product.cols, .after = 0};
  const int64_t ahead = distance / panels / pair_bytes * pair_bytes;
  const int64_t in_panel = ahead % product.panel_bytes;
  const int64_t tiles = ahead / product.panel_bytes;
  const int64_t before = tiles * panels * product.panel_bytes + in_panel;
  return {.before = before,
          .pairs = (product.panel_bytes - in_panel) / pair_bytes,
          .after = before + (panels - 1) * product.panel_bytes};
}

/// All rows in tiles of the same panels, from `first` on, as many as there are: every panel is read
/// once, from its start to its end. Returns the first panel that is left.
int64_t MultiplyInTiles(const PanelProduct& product, TileFunction tile, int64_t first,
                        int64_t panels) {
  const int64_t pair_bytes = product.format == DType::kBF16 ? 64 : 128;
  const int64_t pairs = (product.cols + 1) / 2;
  const ReadAhead near =
      ReadAheadOf(product, panels, pair_bytes, panels == 1 ? kReadAheadOneStream : kReadAheadBytes);
  const ReadAhead far = ReadAheadOf(product, panels, pair_bytes, kReadFarAhead);
  for (; first + panels <= product.num_panels; first += panels) {
    const std::byte* w = product.panels + first * product.panel_bytes;
    // Sums go straight to y where nothing is added to them and no column is missing.
    const bool direct = !product.accumulate && (first + panels) * 16 <= product.columns;
    float* const sums = direct ? product.y + first * 16 : product.sums;
    const int64_t panel_sums = direct ? 16 : product.rows * 16;
    const int64_t row_sums = direct ? product.y_stride : 16;
    // A piece of k's ends where one of the two comes to the end of its panels.
    for (int64_t pair = 0; pair < pairs;) {
      int64_t end = pairs;
      if (pair < near.pairs && near.pairs < end) end = near.pairs;
      if (pair < far.pairs && far.pairs < end) end = far.pairs;
      tile({.w = w + pair * pair_bytes,
            .panel_bytes = product.panel_bytes,
            .x = product.x,
            .first_k = 2 * pair,
            .count_k = (end == pairs ? product.cols : 2 * end) - 2 * pair,
            .from_zero = pair == 0,
            .sums = sums,
            .panel_sums = panel_sums,
            .row_sums = row_sums,
            .prefetch = near.From(w, pair, pair_bytes),
            .prefetch_step = pair_bytes,
            .far_prefetch = far.From(w, pair, pair_bytes)});
      pair = end;
    }
    for (int64_t i = 0; i < panels && !direct; ++i) {
      Finish(product, first + i, sums + i * panel_sums);
    }
  }
  return first;
}

/// Three or four rows: by three panels as long as there are so many. Returns the first panel that
/// is left.
int64_t MultiplyByThreePanels(const PanelProduct& product) {
  const auto multiply = product.rows == 3 ? MultiplyThreeRows : MultiplyFourRows;
  int64_t first = 0;
  for (; first + 3 <= product.num_panels; first += 3) {
    const bool direct = !product.accumulate && (first + 3) * 16 <= product.columns;
    float* const sums = direct ? product.y + first * 16 : product.sums;
    const int64_t row_sums = direct ? product.y_stride : 48;
    multiply({.w = product.panels + first * product.panel_bytes,
              .x = product.x,
              .count_k = product.cols,
              .sums = sums,
              .row_sums = row_sums});
    for (int64_t i = 0; i < 3 && !direct; ++i) {
      Finish(product, first + i, sums + i * 16, row_sums);
    }
  }
  return first;
}

void MultiplyFewRows(const PanelProduct& product) {
  const bool is_bfloat16 = product.format == DType::kBF16;
  const auto& tiles = kTiles[is_bfloat16 ? 1 : 0][product.rows - 1];
  const bool by_three = is_bfloat16 && (product.rows == 3 || product.rows == 4) &&
                        product.cols % 2 == 0 && product.cols <= kThreePanelsMostK;
  int64_t first = by_three ? MultiplyByThreePanels(product) : 0;
  for (int64_t panels = 4; panels > 0; --panels) {
    const TileFunction tile = tiles[panels - 1];
    if (tile != nullptr) first = MultiplyInTiles(product, tile, first, panels);
  }
}

/// Panels [first, first + panels) for all rows, k in blocks.
void MultiplyManyRows(const PanelProduct& product, int64_t first, int64_t panels) {
  const auto& tiles = kTiles[product.format == DType::kBF16 ? 1 : 0];
  const int64_t bytes_per_k = product.format == DType::kBF16 ? 32 : 64;
  const int64_t num_tiles = (product.rows + kRowTile - 1) / kRowTile;
  const int64_t small_tile = product.rows / num_tiles;
  const int64_t large_tiles = product.rows % num_tiles;  // have small_tile + 1 rows
  for (int64_t k = 0; k < product.cols; k += kBlock) {
    const int64_t count_k = product.cols - k < kBlock ? product.cols - k : kBlock;
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* w = product.panels + (first + p) * product.panel_bytes + k * bytes_per_k;
      // The block of weights that comes next is fetched while the row tiles use this one.
      const std::byte* next = p + 1 < panels ? w + product.panel_bytes
                                             : w - p * product.panel_bytes + kBlock * bytes_per_k;
      const int64_t step = count_k * bytes_per_k / num_tiles;
      float* sums = product.sums + p * product.rows * 16;
      int64_t row = 0;
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t rows = small_tile + (t < large_tiles ? 1 : 0);
        tiles[rows - 1][0]({.w = w,
                            .panel_bytes = product.panel_bytes,
                            .x = product.x + row,
                            .first_k = k,
                            .count_k = count_k,
                            .from_zero = k == 0,
                            .sums = sums + row * 16,
                            .panel_sums = 0,
                            .row_sums = 16,
                            .prefetch = next + t * step,
                            .prefetch_step = 2 * bytes_per_k / num_tiles,
                            .far_prefetch = next + t * step});
        row += rows;
      }
    }
  }
  for (int64_t p = 0; p < panels; ++p) {
    Finish(product, first + p, product.sums + p * product.rows * 16);
  }
}

}  // namespace

void MultiplyPanels(const PanelProduct& product) {
  if (product.rows <= kRowTile) {
    MultiplyFewRows(product);
    return;
  }
  for (int64_t p = 0; p < product.num_panels; p += kPanelGroup) {
    const int64_t left = product.num_panels - p;
    MultiplyManyRows(product, p, left < kPanelGroup ? left : kPanelGroup);
  }
}

void RoundToBFloat16Row(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, RoundToBFloat16(_mm256_loadu_ps(x + i)));
  if (i < n) {
    const __m256i mask = TailMask(n - i);
    _mm256_maskstore_ps(y + i, mask, RoundToBFloat16(_mm256_maskload_ps(x + i, mask)));
  }
}

}  // namespace outrider::cpu::avx2
