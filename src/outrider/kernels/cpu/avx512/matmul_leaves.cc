// Panel products with AVX-512. As with AVX2 (avx2/matmul_leaves.cc) each sum is one chain of FMAs
// over k, so both give the same bits; a panel's 16 outputs are one register here, and a tile of R
// rows x P panels keeps up to 24 sums.
//
// Up to kRowTile rows one tile covers all rows and the weights stream through once. For more rows,
// k runs in blocks of kBlock: the block of a panel group stays in L1 while the row tiles pass over
// it, and the sums wait in memory between blocks.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512/vectors.h"

namespace outrider::cpu::avx512 {

namespace {

constexpr int64_t kRowTile = 8;
constexpr int64_t kManyRowTile = 6;  // with whole panel groups
constexpr int64_t kBlock = 128;      // k's per block, even
// Bytes read ahead of the multiplication, over all panels of a tile.
constexpr int64_t kReadAheadBytes = 8192;

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

struct TileArgs {
  const std::byte* w;  // the first panel, at the tile's first k
  int64_t panel_bytes;
  const float* const* x;  // R pointers
  int64_t first_k;
  int64_t count_k;
  const float* from;  // sums so far, or null for zero; panel p, row r at p * panel_sums + r * 16
  float* to;          // where sums wait, or null when they are finished and go to y
  int64_t panel_sums;
  float* y;  // row 0, at the first panel's columns
  int64_t y_stride;
  int64_t columns;  // from there on
  bool accumulate;
  // Each panel's stream is fetched `ahead` bytes ahead for the first near_pairs pairs of k's, then
  // `ahead_at_end`, where the next tile begins.
  int64_t near_pairs;
  int64_t ahead;
  int64_t ahead_at_end;
};

template <bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) __m512 Weights(const std::byte* pair) {
  if constexpr (kIsBFloat16) return WidenHalf<kParity>(pair);
  return _mm512_load_ps(reinterpret_cast<const float*>(pair) + kParity * 16);
}

template <int R, int P, bool kIsBFloat16, int kParity>
inline __attribute__((always_inline)) void AddProducts(const float* const (&x)[R], int64_t k,
                                                       const std::byte* w, int64_t panel_bytes,
                                                       __m512 (&acc)[R][P]) {
  __m512 weights[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) weights[p] = Weights<kIsBFloat16, kParity>(w + p * panel_bytes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 xk = _mm512_set1_ps(x[r][k]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) MultiplyAdd(xk, weights[p], acc[r][p]);
    // Or the compiler reads all of x early, and has too few registers for the sums.
    asm volatile("" ::: "memory");
  }
}

template <int R, int P, bool kIsBFloat16>
void Tile(const TileArgs& args) {
  __m512 acc[R][P];
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    x[r] = args.x[r] + args.first_k;
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      acc[r][p] = args.from == nullptr ? _mm512_setzero_ps()
                                       : _mm512_load_ps(args.from + p * args.panel_sums + r * 16);
    }
  }
  const std::byte* w = args.w;
  const int64_t panel_bytes = args.panel_bytes;
  const int64_t pairs = args.count_k / 2;
  int64_t pair = 0;
  for (const bool at_end : {false, true}) {
    const int64_t end = at_end ? pairs : args.near_pairs;
    const int64_t ahead = at_end ? args.ahead_at_end : args.ahead;
    for (; pair < end; ++pair) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const auto* line = reinterpret_cast<const char*>(w + p * panel_bytes + ahead);
        _mm_prefetch(line, _MM_HINT_T0);
        if constexpr (!kIsBFloat16) _mm_prefetch(line + 64, _MM_HINT_T0);
      }
      AddProducts<R, P, kIsBFloat16, 0>(x, 2 * pair, w, panel_bytes, acc);
      AddProducts<R, P, kIsBFloat16, 1>(x, 2 * pair + 1, w, panel_bytes, acc);
      w += kIsBFloat16 ? 64 : 128;
    }
  }
  if (args.count_k % 2 != 0) {
    AddProducts<R, P, kIsBFloat16, 0>(x, 2 * pairs, w, panel_bytes, acc);
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const int64_t missing = (p + 1) * 16 - args.columns;  // of this panel, less than 16
    const auto mask = static_cast<__mmask16>(missing > 0 ? 0xffffU >> missing : 0xffffU);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (args.to != nullptr) {
        _mm512_store_ps(args.to + p * args.panel_sums + r * 16, acc[r][p]);
        continue;
      }
      float* y = args.y + r * args.y_stride + p * 16;
      const __m512 before = _mm512_maskz_loadu_ps(args.accumulate ? mask : __mmask16{0}, y);
      _mm512_mask_storeu_ps(y, mask,
                            args.accumulate ? _mm512_add_ps(before, acc[r][p]) : acc[r][p]);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

/// Tiles of R rows by the number of panels - 1.
template <int R, bool kIsBFloat16>
constexpr TileFunction kTilesOfRow[8] = {Tile<R, 1, kIsBFloat16>,
                                         Tile<R, 2, kIsBFloat16>,
                                         Tile<R, 3, kIsBFloat16>,
                                         Tile<R, R <= 6 ? 4 : 1, kIsBFloat16>,
                                         Tile<R, R <= 2 ? 5 : 1, kIsBFloat16>,
                                         Tile<R, R <= 2 ? 6 : 1, kIsBFloat16>,
                                         Tile<R, R <= 1 ? 7 : 1, kIsBFloat16>,
                                         Tile<R, R <= 1 ? 8 : 1, kIsBFloat16>};
/// The most panels of a tile: enough chains to hide the latency of an FMA, at most 24 sums.
constexpr int64_t kTilePanels[kRowTile] = {8, 6, 4, 4, 4, 4, 3, 3};

template <bool kIsBFloat16>
constexpr const TileFunction* kTiles[kRowTile] = {
    kTilesOfRow<1, kIsBFloat16>, kTilesOfRow<2, kIsBFloat16>, kTilesOfRow<3, kIsBFloat16>,
    kTilesOfRow<4, kIsBFloat16>, kTilesOfRow<5, kIsBFloat16>, kTilesOfRow<6, kIsBFloat16>,
    kTilesOfRow<7, kIsBFloat16>, kTilesOfRow<8, kIsBFloat16>};

TileFunction TileFor(DType format, int64_t rows, int64_t panels) {
  return (format == DType::kBF16 ? kTiles<true> : kTiles<false>)[rows - 1][panels - 1];
}

/// All rows in one tile: every panel is read once, from its start to its end. The panels of a tile
/// are as many streams; each reads ahead in itself and, towards its end, in its successor of the
/// next tile.
void MultiplyFewRows(const PanelProduct& product) {
  const int64_t most_panels = kTilePanels[product.rows - 1];
  const int64_t pair_bytes = product.format == DType::kBF16 ? 64 : 128;
  const int64_t pairs_ahead = kReadAheadBytes / most_panels / pair_bytes;
  const int64_t pairs = product.cols / 2;
  const int64_t near_pairs = pairs > pairs_ahead ? pairs - pairs_ahead : 0;
  for (int64_t p = 0; p < product.num_panels; p += most_panels) {
    const int64_t panels = Least(most_panels, product.num_panels - p);
    TileFor(product.format, product.rows, panels)({
        .w = product.panels + p * product.panel_bytes,
        .panel_bytes = product.panel_bytes,
        .x = product.x,
        .first_k = 0,
        .count_k = product.cols,
        .from = nullptr,
        .to = nullptr,
        .panel_sums = 0,
        .y = product.y + p * 16,
        .y_stride = product.y_stride,
        .columns = product.columns - p * 16,
        .accumulate = product.accumulate,
        .near_pairs = near_pairs,
        .ahead = pairs_ahead * pair_bytes,
        .ahead_at_end = panels * product.panel_bytes - near_pairs * pair_bytes,
    });
  }
}

/// Panels [first, first + panels) for all rows, k in blocks.
void MultiplyManyRows(const PanelProduct& product, int64_t first, int64_t panels) {
  const int64_t bytes_per_k = product.format == DType::kBF16 ? 32 : 64;
  const int64_t num_tiles = (product.rows + kManyRowTile - 1) / kManyRowTile;
  const int64_t panel_sums = product.rows * 16;
  for (int64_t k = 0; k < product.cols; k += kBlock) {
    const int64_t count_k = Least(kBlock, product.cols - k);
    const bool last = k + count_k == product.cols;
    const std::byte* w = product.panels + first * product.panel_bytes + k * bytes_per_k;
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t row = product.rows * t / num_tiles;
      const int64_t rows = product.rows * (t + 1) / num_tiles - row;
      float* sums = product.sums + row * 16;
      TileFor(product.format, rows, panels)({
          .w = w,
          .panel_bytes = product.panel_bytes,
          .x = product.x + row,
          .first_k = k,
          .count_k = count_k,
          .from = k == 0 ? nullptr : sums,
          .to = last ? nullptr : sums,
          .panel_sums = panel_sums,
          .y = product.y + row * product.y_stride + first * 16,
          .y_stride = product.y_stride,
          .columns = product.columns - first * 16,
          .accumulate = product.accumulate,
          // Only the last tile fetches the next block; the others would fetch it again and again.
          .near_pairs = t + 1 < num_tiles ? count_k / 2 : 0,
          .ahead = 0,
          .ahead_at_end = count_k * bytes_per_k,
      });
    }
  }
}

}  // namespace

void MultiplyPanels(const PanelProduct& product) {
  if (product.rows <= kRowTile) {
    MultiplyFewRows(product);
    return;
  }
  for (int64_t p = 0; p < product.num_panels; p += kPanelGroup) {
    MultiplyManyRows(product, p, Least(kPanelGroup, product.num_panels - p));
  }
}

}  // namespace outrider::cpu::avx512
