// Panel products of a few rows with weights of 8 bits in AMX tiles. FMAs wait for memory with one
// row, but with four their arithmetic takes as long: a code costs them two conversions and a
// multiply-add per row. Here it costs two conversions and a merge, whatever the number of rows.
//
// Four panels stream through at a time, in tiles of 32 columns, and sums stay in tiles from the
// first column to the last, or to the last that shares a scale. Before a tile is multiplied, the
// panel's next one is widened to bfloat16, in L1: turns this short let the processor do both at
// once.

#include <immintrin.h>

#include "outrider/kernels/cpu/amx/code_vectors.h"
#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/tiles.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/weight_formats.h"

namespace outrider::cpu::amx {

namespace {

constexpr int64_t kCodeTileBytes = kTileCols * 16;
static_assert(kWidenedWeights * 4 >= 2 * kPanelGroup * kTileBytes);
constexpr int64_t kTilesAhead = avx512::kReadAheadBytes / (kPanelGroup * kCodeTileBytes);

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
        near_tiles_(tiles_ > kTilesAhead ? tiles_ - kTilesAhead : 0) {}

  void Multiply() {
    for (int64_t p = 0; p < P; ++p) Widen(0, p);
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
  static constexpr bool kHasGroups = W::kFactor != 0;  // columns that share a scale

  bool StartsSums(int64_t tile) const {
    return kHasGroups ? tile * kTileCols % product_.scale_cols == 0 : tile == 0;
  }

  std::byte* WidenedTile(int64_t tile, int64_t panel) const {
    return reinterpret_cast<std::byte*>(product_.widened) +
           (tile % 2 * kPanelGroup + panel) * kTileBytes;
  }

  /// The stream of a panel is fetched ahead in itself and, towards its end, where its successor
  /// begins.
  __attribute__((always_inline)) void Widen(int64_t tile, int64_t p) const {
    const int64_t ahead = tile < near_tiles_
                              ? kTilesAhead * kCodeTileBytes
                              : P * product_.panel_bytes - near_tiles_ * kCodeTileBytes;
    const std::byte* from =
        product_.panels + (first_ + p) * product_.panel_bytes + tile * kCodeTileBytes;
    std::byte* to = WidenedTile(tile, p);
    const std::byte* const end = to + kTileBytes;
    const auto widen_next = [&] {
      avx512::FetchAhead(from + ahead);
      WidenCodes<W>(from, to);
      from += 64;
      to += 128;
    };
    const int64_t columns = product_.cols - tile * kTileCols;
    if (columns >= kTileCols) {
#pragma GCC unroll 8
      for (int64_t k = 0; k < kTileCols; k += 4) widen_next();
      return;
    }
    for (int64_t k = 0; k < columns; k += 4) widen_next();
    for (; to < end; to += 64) _mm512_store_si512(to, _mm512_setzero_si512());
  }

  /// Sum p is of panel p.
  template <int p>
  __attribute__((always_inline)) void AddPanels(int64_t tile) const {
    if constexpr (p < P) {
      constexpr int kWeights = 5 + p % 3;
      if (tile + 1 < tiles_) Widen(tile + 1, p);
      LoadTile<kWeights>(WidenedTile(tile, p));
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
  const int64_t tiles_, near_tiles_;  // of columns
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

void MultiplyCodesByTiles(const PanelProduct& product) {
  const SubnormalsAreZero mode;
  if (product.format == DType::kI8) {
    Multiply<avx512::Int8Weights>(product);
  } else {
    Multiply<avx512::Fp8Weights>(product);
  }
}

}  // namespace outrider::cpu::amx
