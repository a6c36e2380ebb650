// Panel products of up to 16 rows in AMX tiles: one group of rows, while the weights stream through
// once. (More rows: tile_leaves.cc.)
//
// Four panels go at a time, in tiles of 32 columns, and sums stay in tiles from the first column to
// the last, or to the last that shares a scale. A tile waits for lines that come from memory or L2,
// and what follows waits behind it: so lines are fetched into L1 shortly before. Codes of 8 bits
// cost two conversions and a merge, whatever the number of rows: before a tile is multiplied, the
// panel's next one is widened to bfloat16, in L1. Turns this short let the processor do both at
// once.

#include <immintrin.h>

#include <cstring>

#include "outrider/kernels/cpu/amx/code_vectors.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"

namespace outrider::cpu::amx {

namespace {

static_assert(kWidenedWeights * 4 >= 2 * kPanelGroup * kTileBytes);

template <int kFrom, int kCount>
inline __attribute__((always_inline)) void ZeroSums() {
  if constexpr (kCount > 0) {
    ZeroTile<kFrom>();
    ZeroSums<kFrom + 1, kCount - 1>();
  }
}

template <int kFrom, int kCount>
inline __attribute__((always_inline)) void StoreTiles(float* to) {
  if constexpr (kCount > 0) {
    StoreTile<kFrom>(to + kFrom * kTileSums);
    StoreTiles<kFrom + 1, kCount - 1>(to);
  }
}

/// P panels of a product, from `first` on.
template <typename W, int P>
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
      if (StartsSums(tile)) ZeroSums<0, P>();
      LoadTile<4>(product_.x_tiles + tile * product_.rows * kTileCols);
      AddPanels<0>(tile);
      if (kHasGroups && (tile + 1 == tiles_ || StartsSums(tile + 1))) AddScaled(tile);
    }
    if (!kHasGroups) StoreTiles<0, P>(product_.sums);
    Finish();
  }

 private:
  static constexpr bool kIsNarrow = W::kRound == 4;    // weights of 8 bits
  static constexpr bool kHasGroups = W::kFactor != 0;  // columns that share a scale
  static constexpr int64_t kStreamTileBytes = kTileCols / W::kRound * W::kRoundBytes;
  static constexpr int64_t kTilesAhead = avx512::kReadAheadBytes / (P * kStreamTileBytes);

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
    const auto widen_next = [&] {
      FetchLine(from + ahead);
      WidenCodes<W>(from, to);
      from += 64;
      to += 128;
    };
    if (tile < whole_tiles_) {
#pragma GCC unroll 8
      for (int64_t k = 0; k < kTileCols; k += 4) widen_next();
      return;
    }
    for (int64_t k = tile * kTileCols; k < product_.cols; k += 4) widen_next();
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

  /// Sum p is of panel p.
  template <int p>
  __attribute__((always_inline)) void AddPanels(int64_t tile) const {
    if constexpr (p < P) {
      constexpr int kWeights = 5 + p % 3;
      if constexpr (!kIsNarrow) {
        Fetch(tile, p);
      } else if (tile + 1 < tiles_) {
        Widen(tile + 1, p);
      }
      LoadTile<kWeights>(Weights(tile, p));
      MultiplyTiles<p, 4, kWeights>();
      AddPanels<p + 1>(tile);
    }
  }

  /// The sums of the columns that share the scale of `tile`'s go to those of all columns.
  void AddScaled(int64_t tile) const {
    alignas(64) float products[P * kTileSums];
    StoreTiles<0, P>(products);
    const int64_t group = tile * kTileCols / product_.scale_cols;
    for (int64_t p = 0; p < P; ++p) {
      const __m512 scale = _mm512_set1_ps(
          product_.scales[(first_ + p) * product_.scales_per_panel + group] * W::kFactor);
      for (int64_t i = p * kTileSums; i < p * kTileSums + product_.rows * 16; i += 16) {
        float* sums = product_.sums + i;
        const __m512 before = group == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums);
        _mm512_store_ps(sums, _mm512_fmadd_ps(_mm512_load_ps(products + i), scale, before));
      }
    }
  }

  void Finish() const {
    for (int64_t p = 0; p < P; ++p) {
      const int64_t panel = first_ + p;
      for (int64_t r = 0; r < product_.rows; ++r) {
        const __m512 sum = _mm512_load_ps(product_.sums + p * kTileSums + r * 16);
        StoreSums(W::Finished(sum, product_.scales, panel), product_.columns - panel * 16,
                  product_.accumulate, product_.y + r * product_.y_stride + panel * 16);
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
template <typename W>
__attribute__((noinline)) void Multiply(const PanelProduct& product) {
  TileShapes shapes;
  shapes.UseOneGroup(product.rows);
  int64_t p = 0;
  for (; p + kPanelGroup <= product.num_panels; p += kPanelGroup) {
    Panels<W, kPanelGroup>(product, p).Multiply();
  }
  for (; p < product.num_panels; ++p) Panels<W, 1>(product, p).Multiply();
}

}  // namespace

void MultiplyOneGroupByTiles(const PanelProduct& product) {
  const SubnormalsAreZero mode;
  switch (product.format) {
    case DType::kF8E4M3:
      return Multiply<avx512::Fp8Weights>(product);
    case DType::kI8:
      return Multiply<avx512::Int8Weights>(product);
    default:
      return Multiply<avx512::BFloat16Weights>(product);
  }
}

}  // namespace outrider::cpu::amx
