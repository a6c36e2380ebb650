// Panel products with AVX-512. As with AVX2 (avx2/matmul_leaves.cc) each sum is one chain of FMAs
// over k, so both give the same bits; a panel's 16 outputs are one register here, and a tile of R
// rows x P panels keeps up to 24 sums.
//
// Up to kRowTile rows one tile covers all rows and the weights stream through once. For more rows,
// k runs in blocks of kBlock: the block of a panel group stays in L1 while the row tiles pass over
// it, and the sums wait in memory between blocks. Blocks of narrow weights are widened for that,
// once for all rows; bfloat16, which costs one operation per vector, only where rows are many.

#include <immintrin.h>

#include <type_traits>

#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"

namespace outrider::cpu::avx512 {

namespace {

constexpr int64_t kRowTile = kMostRowsOfCodes;
constexpr int64_t kManyRowTile = 6;  // with whole panel groups
constexpr int64_t kBlock = 128;      // k's per block, whole rounds of every format
static_assert(kBlock * 16 * kPanelGroup <= kWidenedWeights);
constexpr int64_t kLeastRowsToWiden = 48;  // blocks of bfloat16

template <typename W>
constexpr int64_t kBytesPerK = W::kRoundBytes / W::kRound;

/// Whether weights of a format are blocks in L1.
template <typename W>
constexpr bool kIsWidened = false;
template <typename W>
constexpr bool kIsWidened<Widened<W>> = true;

using avx2::Least;

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
  const float* scales;  // kI8: of the product
  int64_t first_panel;  // in that
  // Each panel's stream, unless it is widened, is fetched `ahead` bytes ahead for the first
  // near_rounds rounds, then `ahead_at_end`, where the next tile begins; into L2 `farther` ahead of
  // that.
  int64_t near_rounds;
  int64_t ahead;
  int64_t ahead_at_end;
  int64_t farther;
};

/// Adds x[r][k] * W[n][k] to the sums of every row and panel, for the k at place kK of the round at
/// w.
template <int R, int P, typename W, int kK>
inline __attribute__((always_inline)) void AddProducts(const float* const (&x)[R], int64_t k,
                                                       const std::byte* w, int64_t panel_bytes,
                                                       __m512 (&acc)[R][P]) {
  __m512 weights[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) weights[p] = W::template Load<kK>(w + p * panel_bytes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 xk = _mm512_set1_ps(x[r][k + kK]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) MultiplyAdd(xk, weights[p], acc[r][p]);
    // Or the compiler reads all of x early, and has too few registers for the sums.
    asm volatile("" ::: "memory");
  }
}

template <int R, int P, typename W>
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
  const int64_t rounds = args.count_k / W::kRound;
  int64_t round = 0;
  for (const bool at_end : {false, true}) {
    const int64_t end = at_end ? rounds : args.near_rounds;
    const int64_t ahead = at_end ? args.ahead_at_end : args.ahead;
    for (; round < end; ++round) {
#pragma GCC unroll 8
      for (int p = 0; p < P && !kIsWidened<W>; ++p) {
        const std::byte* line = w + p * panel_bytes + ahead;
        FetchAhead(line, args.farther);
        if constexpr (W::kRoundBytes > 64) FetchAhead(line + 64, args.farther);
      }
      const int64_t k = W::kRound * round;
      AddProducts<R, P, W, 0>(x, k, w, panel_bytes, acc);
      AddProducts<R, P, W, 1>(x, k, w, panel_bytes, acc);
      if constexpr (W::kRound == 4) {
        AddProducts<R, P, W, 2>(x, k, w, panel_bytes, acc);
        AddProducts<R, P, W, 3>(x, k, w, panel_bytes, acc);
      }
      w += W::kRoundBytes;
    }
  }
  // Formats of longer rounds have whole ones only.
  if (W::kRound == 2 && args.count_k % 2 != 0) {
    AddProducts<R, P, W, 0>(x, 2 * rounds, w, panel_bytes, acc);
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
      const __m512 sum = W::Finished(acc[r][p], args.scales, args.first_panel + p);
      const __m512 before = _mm512_maskz_loadu_ps(args.accumulate ? mask : __mmask16{0}, y);
      _mm512_mask_storeu_ps(y, mask, args.accumulate ? _mm512_add_ps(before, sum) : sum);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

/// Tiles of R rows by the number of panels - 1.
template <int R, typename W>
constexpr TileFunction kTilesOfRow[kPanelGroup] = {Tile<R, 1, W>, Tile<R, 2, W>, Tile<R, 3, W>,
                                                   Tile<R, R <= 6 ? 4 : 1, W>};
/// The most panels of a tile: at most 24 sums, and no more streams than memory serves well.
constexpr int64_t kTilePanels[kRowTile] = {4, 4, 4, 4, 4, 4, 3, 3};

/// By the number of rows - 1.
template <typename W>
constexpr const TileFunction* kTiles[kRowTile] = {
    kTilesOfRow<1, W>, kTilesOfRow<2, W>, kTilesOfRow<3, W>, kTilesOfRow<4, W>,
    kTilesOfRow<5, W>, kTilesOfRow<6, W>, kTilesOfRow<7, W>, kTilesOfRow<8, W>};

/// All rows in one tile: every panel is read once, from its start to its end. The panels of a tile
/// are as many streams; each reads ahead in itself and, towards its end, in its successor of the
/// next tile.
template <typename W>
void MultiplyFewRows(const PanelProduct& product) {
  const int64_t most_panels = kTilePanels[product.rows - 1];
  const int64_t rounds_ahead = kReadAheadBytes / most_panels / W::kRoundBytes;
  const int64_t rounds = product.cols / W::kRound;
  const int64_t near_rounds = rounds > rounds_ahead ? rounds - rounds_ahead : 0;
  for (int64_t p = 0; p < product.num_panels; p += most_panels) {
    const int64_t panels = Least(most_panels, product.num_panels - p);
    kTiles<W>[product.rows - 1][panels - 1]({
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
        .scales = product.scales,
        .first_panel = p,
        .near_rounds = near_rounds,
        .ahead = rounds_ahead * W::kRoundBytes,
        .ahead_at_end = panels * product.panel_bytes - near_rounds * W::kRoundBytes,
        .farther = kFartherBytes,
    });
  }
}

/// k's [k, k + count_k) of panel p as float32 in the layout of that; e4m3 codes times their scales
/// and the factor that x would have, if there are scales.
template <typename W>
void Widen(const PanelProduct& product, int64_t p, int64_t k, int64_t count_k, float* to) {
  const std::byte* from = product.panels + p * product.panel_bytes;
  for (const int64_t last = k + count_k; k < last;) {
    int64_t end = last;
    __m512 scale = _mm512_set1_ps(1.0F);
    if (W::kFactor != 0 && product.scales != nullptr) {
      const int64_t group = k / product.scale_cols;
      end = Least(last, (group + 1) * product.scale_cols);
      scale = _mm512_set1_ps(product.scales[p * product.scales_per_panel + group] * W::kFactor);
    }
    const auto store = [&](int64_t i, __m512 weights) {
      _mm512_store_ps(to + i * 16, W::kFactor != 0 ? _mm512_mul_ps(weights, scale) : weights);
    };
    for (; k < end; k += W::kRound, to += W::kRound * 16) {
      const std::byte* round = from + k * kBytesPerK<W>;
      store(0, W::template Load<0>(round));
      store(1, W::template Load<1>(round));
      if constexpr (W::kRound == 4) {
        store(2, W::template Load<2>(round));
        store(3, W::template Load<3>(round));
      }
    }
  }
}

/// Panels [first, first + panels) for all rows, k in blocks, by tiles of another format if the
/// blocks are to be widened.
template <typename W, typename Tiled>
void MultiplyManyRows(const PanelProduct& product, int64_t first, int64_t panels) {
  const int64_t num_tiles = (product.rows + kManyRowTile - 1) / kManyRowTile;
  const int64_t panel_sums = product.rows * 16;
  for (int64_t k = 0; k < product.cols; k += kBlock) {
    const int64_t count_k = Least(kBlock, product.cols - k);
    const bool last = k + count_k == product.cols;
    const std::byte* block = product.panels + first * product.panel_bytes + k * kBytesPerK<W>;
    const std::byte* w = block;
    if constexpr (kIsWidened<Tiled>) {
      for (int64_t p = 0; p < panels; ++p) {
        Widen<W>(product, first + p, k, count_k, product.widened + p * kBlock * 16);
      }
      w = reinterpret_cast<const std::byte*>(product.widened);
    }
    // While tiles use a widened block, the next one is fetched into L2, a part with each of them.
    const std::byte* next = last ? block + panels * product.panel_bytes - k * kBytesPerK<W>
                                 : block + count_k * kBytesPerK<W>;
    const int64_t next_lines = kIsWidened<Tiled> ? count_k * kBytesPerK<W> / 64 : 0;
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t end = next_lines * (t + 1) / num_tiles;
      for (int64_t line = next_lines * t / num_tiles; line < end; ++line) {
        for (int64_t p = 0; p < panels; ++p) {
          _mm_prefetch(reinterpret_cast<const char*>(next + p * product.panel_bytes + line * 64),
                       _MM_HINT_T1);
        }
      }
      const int64_t row = product.rows * t / num_tiles;
      const int64_t rows = product.rows * (t + 1) / num_tiles - row;
      float* sums = product.sums + row * 16;
      kTiles<Tiled>[rows - 1][panels - 1]({
          .w = w,
          .panel_bytes = kIsWidened<Tiled> ? kBlock * 64 : product.panel_bytes,
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
          .scales = product.scales,
          .first_panel = first,
          // Only the last tile fetches the next block; the others would fetch it again and again.
          .near_rounds = t + 1 < num_tiles ? count_k / Tiled::kRound : 0,
          .ahead = 0,
          .ahead_at_end = count_k * kBytesPerK<W>,
          .farther = 0,
      });
    }
  }
}

template <typename W>
void Multiply(const PanelProduct& product) {
  if (product.rows <= kRowTile) {
    MultiplyFewRows<W>(product);
    return;
  }
  constexpr bool kIsBFloat16 = std::is_same_v<W, BFloat16Weights>;
  const bool widens = !kIsBFloat16 || product.rows >= kLeastRowsToWiden;
  for (int64_t p = 0; p < product.num_panels; p += kPanelGroup) {
    const int64_t panels = Least(kPanelGroup, product.num_panels - p);
    if (widens) {
      MultiplyManyRows<W, typename W::Tiled>(product, p, panels);
    } else if constexpr (kIsBFloat16) {
      MultiplyManyRows<W, W>(product, p, panels);
    }
  }
}

}  // namespace

void MultiplyPanels(const PanelProduct& product) {
  switch (product.format) {
    case DType::kF32:
      return Multiply<Float32Weights>(product);
    case DType::kF8E4M3:
      return Multiply<Fp8Weights>(product);
    case DType::kI8:
      return Multiply<Int8Weights>(product);
    case DType::kF4E2M1:
      return MultiplyFewRowsByFp4(product);
    default:
      return Multiply<BFloat16Weights>(product);
  }
}

}  // namespace outrider::cpu::avx512
