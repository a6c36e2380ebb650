// Panel products of one or two rows by FMAs, with the bits of TDPBF16PS (MatMulJob): the sums
// of a tile's even and odd columns are separate chains, which also halves the wait of an FMA for
// the one before. Such products wait for memory, or are too short for rows to be packed first. As
// with AVX-512 (avx512/matmul_leaves.cc) one tile of R rows x P panels covers all rows, and the
// weights stream through once.

#include <immintrin.h>

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"

namespace outrider::cpu::amx {

namespace {

constexpr int64_t kMostRows = kLeastRowsOfTiles - 1;

struct PairTile {
  const std::byte* w;  // the first panel
  int64_t panel_bytes;
  const float* const* x;  // R pointers
  int64_t cols;
  float* y;  // row 0, at the first panel's columns
  int64_t y_stride;
  int64_t columns;  // from there on
  bool accumulate;
  const float* scales;  // of the product
  int64_t scales_per_panel;
  int64_t scale_cols;
  int64_t first_panel;  // in the product
  // Each panel's stream is fetched `ahead` bytes ahead for the first near_cols columns, then
  // `ahead_at_end`, where the next tile begins.
  int64_t near_cols;
  int64_t ahead;
  int64_t ahead_at_end;
};

/// The sums of a tile of columns, one per row and panel.
template <int R, int P>
struct Sums {
  __m512 of[R][P];

  __attribute__((always_inline)) Sums() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) of[r][p] = _mm512_setzero_ps();
    }
  }
};

/// Adds x[r][k] * W[n][k] for the k at place kK of the round at w.
template <typename W, int kK, int R, int P>
inline __attribute__((always_inline)) void AddProducts(const float* const (&x)[R], int64_t k,
                                                       const std::byte* w, int64_t panel_bytes,
                                                       Sums<R, P>& sums) {
  __m512 weights[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) weights[p] = W::template Load<kK>(w + p * panel_bytes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 xk = _mm512_set1_ps(x[r][k + kK]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) avx512::MultiplyAdd(xk, weights[p], sums.of[r][p]);
    // Or the compiler reads all of x early, and has too few registers for the sums.
    asm volatile("" ::: "memory");
  }
}

template <typename W, int R, int P>
inline __attribute__((always_inline)) void AddRounds(const float* const (&x)[R], int64_t k,
                                                     int64_t rounds, const std::byte* w,
                                                     int64_t panel_bytes, int64_t ahead,
                                                     Sums<R, P>& even, Sums<R, P>& odd) {
  static_assert(W::kRoundBytes == 64);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) avx512::FetchAhead(w + p * panel_bytes + ahead);
    AddProducts<W, 0>(x, k, w, panel_bytes, even);
    AddProducts<W, 1>(x, k, w, panel_bytes, odd);
    if constexpr (W::kRound == 4) {
      AddProducts<W, 2>(x, k, w, panel_bytes, even);
      AddProducts<W, 3>(x, k, w, panel_bytes, odd);
    }
    k += W::kRound;
    w += W::kRoundBytes;
  }
}

template <int R, int P, typename W>
void Multiply(const PairTile& tile) {
  constexpr bool kHasGroups = W::kFactor != 0;  // columns that share a scale
  Sums<R, P> sums;
  Sums<R, P> finished;
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = tile.x[r];
  const std::byte* w = tile.w;
  const float* scales = tile.scales + tile.first_panel * tile.scales_per_panel;
  int64_t group_end = tile.scale_cols;
  for (int64_t k = 0; k < tile.cols; k += kTileCols) {
    Sums<R, P> even;
    Sums<R, P> odd;
    const int64_t ahead = k < tile.near_cols ? tile.ahead : tile.ahead_at_end;
    const int64_t count = tile.cols - k;
    if (count >= kTileCols) {
      AddRounds<W>(x, k, kTileCols / W::kRound, w, tile.panel_bytes, ahead, even, odd);
    } else {
      const int64_t rounds = count / W::kRound;
      AddRounds<W>(x, k, rounds, w, tile.panel_bytes, ahead, even, odd);
      // Formats of longer rounds have whole ones only.
      if (W::kRound == 2 && count % 2 != 0) {
        AddProducts<W, 0>(x, k + 2 * rounds, w + rounds * W::kRoundBytes, tile.panel_bytes, even);
      }
      // The zeros behind the last column: they take the sign from a zero.
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          even.of[r][p] = _mm512_add_ps(even.of[r][p], _mm512_setzero_ps());
          odd.of[r][p] = _mm512_add_ps(odd.of[r][p], _mm512_setzero_ps());
        }
      }
    }
    w += kTileCols / W::kRound * W::kRoundBytes;
    const bool ends_group = kHasGroups && (k + kTileCols == group_end || count <= kTileCols);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        __m512& sum = sums.of[r][p];
        sum = _mm512_add_ps(sum, _mm512_add_ps(even.of[r][p], odd.of[r][p]));
        if (!ends_group) continue;
        const __m512 scale = _mm512_set1_ps(scales[p * tile.scales_per_panel] * W::kFactor);
        finished.of[r][p] = _mm512_fmadd_ps(sum, scale, finished.of[r][p]);
        sum = _mm512_setzero_ps();
      }
    }
    if (ends_group) {
      group_end += tile.scale_cols;
      ++scales;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const __m512 sum = kHasGroups ? finished.of[r][p] : sums.of[r][p];
      StoreSums(W::Finished(sum, tile.scales, tile.first_panel + p), tile.columns - p * 16,
                tile.accumulate, tile.y + r * tile.y_stride + p * 16);
    }
  }
}

using TileFunction = void (*)(const PairTile&);

/// By the numbers of rows - 1 and of panels - 1. With two chains for each sum, and a total, at most
/// 24 registers.
template <typename W>
constexpr TileFunction kTiles[kMostRows][kPanelGroup] = {
    {Multiply<1, 1, W>, Multiply<1, 2, W>, Multiply<1, 3, W>, Multiply<1, 4, W>},
    {Multiply<2, 1, W>, Multiply<2, 2, W>, Multiply<2, 3, W>, Multiply<2, 4, W>}};

template <typename W>
void MultiplyFormat(const PanelProduct& product) {
  const int64_t tile_bytes = kTileCols / W::kRound * W::kRoundBytes;  // of 32 columns
  const int64_t tiles = (product.cols + kTileCols - 1) / kTileCols;
  const int64_t tiles_ahead = avx512::kReadAheadBytes / kPanelGroup / tile_bytes + 1;
  const int64_t near_tiles = tiles > tiles_ahead ? tiles - tiles_ahead : 0;
  for (int64_t p = 0; p < product.num_panels; p += kPanelGroup) {
    const int64_t panels = Least(kPanelGroup, product.num_panels - p);
    kTiles<W>[product.rows - 1][panels - 1]({
        .w = product.panels + p * product.panel_bytes,
        .panel_bytes = product.panel_bytes,
        .x = product.x,
        .cols = product.cols,
        .y = product.y + p * 16,
        .y_stride = product.y_stride,
        .columns = product.columns - p * 16,
        .accumulate = product.accumulate,
        .scales = product.scales,
        .scales_per_panel = product.scales_per_panel,
        .scale_cols = product.scale_cols,
        .first_panel = p,
        .near_cols = near_tiles * kTileCols,
        .ahead = tiles_ahead * tile_bytes,
        .ahead_at_end = panels * product.panel_bytes - near_tiles * tile_bytes,
    });
  }
}

}  // namespace

void MultiplyByPairs(const PanelProduct& product) {
  const SubnormalsAreZero mode;
  switch (product.format) {
    case DType::kF8E4M3:
      return MultiplyFormat<avx512::Fp8Weights>(product);
    case DType::kI8:
      return MultiplyFormat<avx512::Int8Weights>(product);
    case DType::kF4E2M1:
      return MultiplyFp4ByPairs(product);
    default:
      return MultiplyFormat<avx512::BFloat16Weights>(product);
  }
}

}  // namespace outrider::cpu::amx
