// Panel products of up to 64 rows in AMX tiles: one to four groups of rows, while the weights
// stream through once. (More rows: tile_leaves.cc.)
//
// Four panels go at a time with one group, two with two, and one with more, in tiles of 32 columns,
// and sums stay in tiles from the first column to the last, or to the last that shares a scale. A
// tile waits for lines that come from memory or L2, and what follows waits behind it: so lines are
// fetched into L1 shortly before. Codes of 8 bits cost two conversions and a merge, and those of 4
// a lookup and an addition, whatever the number of rows: before a tile is multiplied, the panel's
// next one is widened to bfloat16, in L1. Turns this short let the processor do both at once.

#include <immintrin.h>

#include <cstring>

#include "outrider/kernels/cpu/amx/code_vectors.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/panel_sums.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"

namespace outrider::cpu::amx {

namespace {

static_assert(kWidenedWeights * 4 >= 2 * kPanelGroup * kTileBytes);

/// Panels at a time that leave each of the groups a tile for every sum.
constexpr int PanelsAtATime(int groups) { return groups == 1 ? 4 : groups == 2 ? 2 : 1; }
static_assert(kFewGroups * PanelsAtATime(kFewGroups) == 4);

/// P panels of a product with G groups of rows, from `first` on.
template <typename W, int G, int P>
class Panels {
 public:
  Panels(const PanelProduct& product, int64_t first)
      : product_(product),
        first_(first),
        tiles_((product.cols + kTileCols - 1) / kTileCols),
        whole_tiles_(product.cols / kTileCols),
        near_tiles_(tiles_ > kTilesAhead ? tiles_ - kTilesAhead : 0) {}

  void Multiply() {
    if constexpr (kIsNarrow) {
      for (int64_t p = 0; p < P; ++p) Widen(0, p);
    }
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      if (StartsSums(tile)) ZeroSums<0>();
      AddPanels<0>(tile);
      if (kHasGroups && (tile + 1 == tiles_ || StartsSums(tile + 1))) AddScaled(tile);
    }
    if (!kHasGroups) StoreSumTiles<0>(product_.sums);
    Finish();
  }

 private:
  static constexpr bool kIsNarrow = W::kRound >= 4;    // codes
  static constexpr bool kHasGroups = W::kFactor != 0;  // columns that share a scale
  static constexpr int64_t kStreamTileBytes = kTileCols / W::kRound * W::kRoundBytes;
  static constexpr int64_t kTilesAhead = avx512::kReadAheadBytes / (P * kStreamTileBytes);

  // Sum g * kPanelsPerGroup + p is of group g and panel p.
  static constexpr int kPanelsPerGroup = PanelsAtATime(G);
  static_assert(P <= kPanelsPerGroup);

  bool StartsSums(int64_t tile) const {
    return kHasGroups ? tile * kTileCols % product_.scale_cols == 0 : tile == 0;
  }

  const std::byte* StreamTile(int64_t tile, int64_t p) const {
    return product_.panels + (first_ + p) * product_.panel_bytes + tile * kStreamTileBytes;
  }

  /// Where a tile is made that is not taken from the stream as it is.
  std::byte* MadeTile(int64_t tile, int64_t p) const {
    return reinterpret_cast<std::byte*>(product_.widened) +
           (tile % 2 * kPanelGroup + p) * kTileBytes;
  }

  /// How far ahead of a tile its panel's stream is fetched: in itself and, towards its end, where
  /// its successor begins.
  int64_t Ahead(int64_t tile) const {
    return tile < near_tiles_ ? kTilesAhead * kStreamTileBytes
                              : P * product_.panel_bytes - near_tiles_ * kStreamTileBytes;
  }

  __attribute__((always_inline)) void Widen(int64_t tile, int64_t p) const {
    const int64_t ahead = Ahead(tile);
    const std::byte* from = StreamTile(tile, p);
    std::byte* to = MadeTile(tile, p);
    const std::byte* const end = to + kTileBytes;
    const CodeWidener<W> widener(product_, first_ + p, tile);
    const auto widen_next = [&] {
      FetchLine(from + ahead);
      widener.Widen(from, to);
      from += W::kRoundBytes;
      to += W::kRound * 2 * kPanelRows;
    };
    if (tile < whole_tiles_) {
#pragma GCC unroll 8
      for (int64_t k = 0; k < kTileCols; k += W::kRound) widen_next();
      return;
    }
    for (int64_t k = tile * kTileCols; k < product_.cols; k += W::kRound) widen_next();
    for (; to < end; to += 64) _mm512_store_si512(to, _mm512_setzero_si512());
  }

  __attribute__((always_inline)) void Fetch(int64_t tile, int64_t p) const {
    const std::byte* line = StreamTile(tile, p) + Ahead(tile);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStreamTileBytes; i += 64) FetchLine(line + i);
  }

  static __attribute__((always_inline)) void FetchLine(const std::byte* line) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }

  const std::byte* Weights(int64_t tile, int64_t p) const {
    if (kIsNarrow) return MadeTile(tile, p);
    return tile < whole_tiles_ ? StreamTile(tile, p) : LastTile(p);
  }

  /// The columns behind the whole tiles, and zeros.
  const std::byte* LastTile(int64_t p) const {
    const int64_t bytes = product_.panel_bytes - whole_tiles_ * kStreamTileBytes;
    std::byte* tile = MadeTile(whole_tiles_, p);
    std::memcpy(tile, StreamTile(whole_tiles_, p), static_cast<size_t>(bytes));
    std::memset(tile + bytes, 0, static_cast<size_t>(kTileBytes - bytes));
    return tile;
  }

  int64_t RowsOf(int64_t group) const {
    return group + 1 < G ? kTileRows : product_.rows - (G - 1) * kTileRows;
  }

  const BFloat16* RowsTile(int64_t tile, int64_t group) const {
    return product_.x_tiles + group * TiledElements(kTileRows, product_.cols) +
           tile * RowsOf(group) * kTileCols;
  }

  template <int i>
  static __attribute__((always_inline)) void ZeroSums() {
    if constexpr (i < G * P) {
      ZeroTile<i / P * kPanelsPerGroup + i % P>();
      ZeroSums<i + 1>();
    }
  }

  template <int i>
  static __attribute__((always_inline)) void StoreSumTiles(float* to) {
    if constexpr (i < G * P) {
      constexpr int kSum = i / P * kPanelsPerGroup + i % P;
      StoreTile<kSum>(to + kSum * kTileSums);
      StoreSumTiles<i + 1>(to);
    }
  }

  template <int p>
  __attribute__((always_inline)) void AddPanels(int64_t tile) const {
    if constexpr (p < P) {
      constexpr int kWeights = G == 1 ? 5 + p % 3 : 6 + p;
      if constexpr (!kIsNarrow) {
        Fetch(tile, p);
      } else if (tile + 1 < tiles_) {
        Widen(tile + 1, p);
      }
      LoadTile<kWeights>(Weights(tile, p));
      AddGroups<p, kWeights, 0>(tile);
      AddPanels<p + 1>(tile);
    }
  }

  /// (Rows stay in their tiles where there are more panels.)
  template <int p, int kWeights, int g>
  __attribute__((always_inline)) void AddGroups(int64_t tile) const {
    if constexpr (g < G) {
      constexpr int kRows = G > 1 && g == G - 1 ? 5 : g % 2 == 0 ? 4 : 7;
      if constexpr (p == 0) LoadTile<kRows>(RowsTile(tile, g));
      MultiplyTiles<g * kPanelsPerGroup + p, kRows, kWeights>();
      AddGroups<p, kWeights, g + 1>(tile);
    }
  }

  float* SumsOf(int64_t group, int64_t p) const {
    return product_.sums + (group * kPanelsPerGroup + p) * kTileSums;
  }

  /// The sums of the columns that share the scale of `tile`'s go to those of all columns.
  void AddScaled(int64_t tile) const {
    alignas(64) float products[4 * kTileSums];
    StoreSumTiles<0>(products);
    const int64_t scale_group = tile * kTileCols / product_.scale_cols;
    for (int64_t p = 0; p < P; ++p) {
      for (int64_t g = 0; g < G; ++g) {
        float* sums = SumsOf(g, p);
        amx::AddScaled<W>(product_, first_ + p, scale_group, RowsOf(g),
                          products + (sums - product_.sums), sums);
      }
    }
  }

  void Finish() const {
    for (int64_t p = 0; p < P; ++p) {
      for (int64_t g = 0; g < G; ++g) {
        FinishSums<W>(product_, first_ + p, g * kTileRows, RowsOf(g), SumsOf(g, p));
      }
    }
  }

  const PanelProduct& product_;
  const int64_t first_;
  const int64_t tiles_, whole_tiles_;  // of columns
  const int64_t near_tiles_;           // those that are fetched ahead within their panel
};

/// (Never inlined: what it computes between tiles is to stay between the changes of the vector
/// unit's mode.)
template <typename W, int G>
__attribute__((noinline)) void MultiplyGroups(const PanelProduct& product) {
  constexpr int64_t kAtATime = PanelsAtATime(G);
  TileShapes shapes;
  shapes.UseGroups(G, product.rows - (G - 1) * kTileRows);
  int64_t p = 0;
  for (; p + kAtATime <= product.num_panels; p += kAtATime) {
    Panels<W, G, kAtATime>(product, p).Multiply();
  }
  for (; p < product.num_panels; ++p) Panels<W, G, 1>(product, p).Multiply();
}

template <typename W>
void Multiply(const PanelProduct& product) {
  switch ((product.rows + kTileRows - 1) / kTileRows) {
    case 1:
      return MultiplyGroups<W, 1>(product);
    case 2:
      return MultiplyGroups<W, 2>(product);
    case 3:
      return MultiplyGroups<W, 3>(product);
    default:
      return MultiplyGroups<W, 4>(product);
  }
}

}  // namespace

void MultiplyFewGroupsByTiles(const PanelProduct& product) {
  const SubnormalsAreZero mode;
  switch (product.format) {
    case DType::kF8E4M3:
      return Multiply<avx512::Fp8Weights>(product);
    case DType::kI8:
      return Multiply<avx512::Int8Weights>(product);
    case DType::kF4E2M1:
      return Multiply<Fp4Weights>(product);
    default:
      return Multiply<avx512::BFloat16Weights>(product);
  }
}

}  // namespace outrider::cpu::amx
