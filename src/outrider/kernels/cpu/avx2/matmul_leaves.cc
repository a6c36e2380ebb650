// Panel products with AVX2 and FMA.
//
// A tile is R rows of x times P panels of 16 outputs, its R * P * 2 sums in registers. Each sum is
// one chain of FMAs over k, which alone would wait 4 cycles per k: a tile therefore holds eight
// independent chains or so, by more panels where rows are few (three_panel_tile.h has a better tile
// for short panels). Narrow weights are widened in registers (weight_formats.h) and never touch
// memory.
//
// Up to kRowTile rows one tile covers all rows and the weights stream through once. For more rows,
// k runs in blocks of kBlock: the block of a panel stays in L1 while the row tiles pass over it,
// and the sums wait in memory between blocks, as float32, which keeps the chain (and its bits) the
// same. Blocks of 8-bit weights are widened for that, once for all rows, if rows are more than
// kMostRowsOfCodes.

#include <immintrin.h>

#include <type_traits>

#include "outrider/kernels/cpu/avx2/fp4_tile.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/panel_tile.h"
#include "outrider/kernels/cpu/avx2/three_panel_tile.h"
#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kBlock = 256;  // k's per block, whole rounds of every format
static_assert(kBlock * 16 <= kWidenedWeights);
// Read ahead of the multiplication, for products of one row tile: over the streams of a tile, and
// in the one stream of a tile of one panel.
constexpr int64_t kReadAheadBytes = 8192;
constexpr int64_t kReadAheadOneStream = 2048;
// That alone keeps too few reads from memory in flight: every tile also fetches into L2 from this
// far, over its streams.
constexpr int64_t kReadFarAhead = 16384;

/// Moves the sums of panel p of `product` to y, by way of W::Scale; row r's are at
/// sums + r * row_sums.
template <typename W>
void Finish(const PanelProduct& product, int64_t p, const float* sums, int64_t row_sums = 16) {
  const int64_t count = Least(16, product.columns - p * 16);
  for (int64_t r = 0; r < product.rows; ++r) {
    const float* from = sums + r * row_sums;
    float* y = product.y + r * product.y_stride + p * 16;
    __m256 low = _mm256_load_ps(from);
    __m256 high = _mm256_load_ps(from + 8);
    W::Scale(product.scales, p, low, high);
    if (count == 16) {
      if (product.accumulate) {
        low = _mm256_add_ps(_mm256_loadu_ps(y), low);
        high = _mm256_add_ps(_mm256_loadu_ps(y + 8), high);
      }
      _mm256_storeu_ps(y, low);
      _mm256_storeu_ps(y + 8, high);
    } else {
      alignas(32) float sum[16];
      _mm256_store_ps(sum, low);
      _mm256_store_ps(sum + 8, high);
      for (int64_t n = 0; n < count; ++n) y[n] = product.accumulate ? y[n] + sum[n] : sum[n];
    }
  }
}

/// How far ahead the streams of a tile read: each in its panel and, past the panel's end, in its
/// successor of a later tile.
struct ReadAhead {
  int64_t before;  // bytes ahead of a stream in the first `rounds` rounds of its panel
  int64_t rounds;
  int64_t after;  // bytes ahead of it in later rounds

  const std::byte* From(const std::byte* w, int64_t round, int64_t round_bytes) const {
    return w + round * round_bytes + (round < rounds ? before : after);
  }
};

/// `distance` bytes ahead over all streams of tiles of `panels` panels.
ReadAhead ReadAheadOf(const PanelProduct& product, int64_t panels, int64_t round_bytes,
                      int64_t distance) {
  // One stream goes on where a panel ends.
  if (panels == 1) return {.before = distance, .rounds = product.cols, .after = 0};
  const int64_t ahead = distance / panels / round_bytes * round_bytes;
  const int64_t in_panel = ahead % product.panel_bytes;
  const int64_t tiles = ahead / product.panel_bytes;
  const int64_t before = tiles * panels * product.panel_bytes + in_panel;
  return {.before = before,
          .rounds = (product.panel_bytes - in_panel) / round_bytes,
          .after = before + (panels - 1) * product.panel_bytes};
}

/// All rows in tiles of the same panels, from `first` on, as many as there are: every panel is read
/// once, from its start to its end. Returns the first panel that is left.
template <typename W>
int64_t MultiplyInTiles(const PanelProduct& product, TileFunction tile, int64_t first,
                        int64_t panels) {
  const int64_t rounds = (product.cols + W::kRound - 1) / W::kRound;
  const ReadAhead near = ReadAheadOf(product, panels, W::kRoundBytes,
                                     panels == 1 ? kReadAheadOneStream : kReadAheadBytes);
  const ReadAhead far = ReadAheadOf(product, panels, W::kRoundBytes, kReadFarAhead);
  for (; first + panels <= product.num_panels; first += panels) {
    const std::byte* w = product.panels + first * product.panel_bytes;
    // Sums go straight to y where nothing is added to them and no column is missing.
    const bool direct = !product.accumulate && (first + panels) * 16 <= product.columns;
    float* const sums = direct ? product.y + first * 16 : product.sums;
    const int64_t panel_sums = direct ? 16 : product.rows * 16;
    const int64_t row_sums = direct ? product.y_stride : 16;
    // A piece of k's ends where one of the two comes to the end of its panels.
    for (int64_t round = 0; round < rounds;) {
      int64_t end = rounds;
      if (round < near.rounds && near.rounds < end) end = near.rounds;
      if (round < far.rounds && far.rounds < end) end = far.rounds;
      tile({.w = w + round * W::kRoundBytes,
            .panel_bytes = product.panel_bytes,
            .x = product.x,
            .first_k = W::kRound * round,
            .count_k = (end == rounds ? product.cols : W::kRound * end) - W::kRound * round,
            .from_zero = round == 0,
            .sums = sums,
            .panel_sums = panel_sums,
            .row_sums = row_sums,
            .complete = end == rounds,
            .scales = product.scales,
            .first_panel = first,
            .prefetch = near.From(w, round, W::kRoundBytes),
            .prefetch_step = W::kRoundBytes,
            .far_prefetch = far.From(w, round, W::kRoundBytes)});
      round = end;
    }
    for (int64_t i = 0; i < panels && !direct; ++i) {
      Finish<PlainWeights>(product, first + i, sums + i * panel_sums);
    }
  }
  return first;
}

/// Three or four rows: takes three panels at a time while three are left. Returns the first panel
/// that it did not take.
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
      Finish<PlainWeights>(product, first + i, sums + i * 16, row_sums);
    }
  }
  return first;
}

template <typename W>
void MultiplyFewRows(const PanelProduct& product) {
  const bool by_three = std::is_same_v<W, BFloat16Weights> &&
                        (product.rows == 3 || product.rows == 4) && product.cols % 2 == 0 &&
                        product.cols <= kThreePanelsMostK;
  int64_t first = by_three ? MultiplyByThreePanels(product) : 0;
  for (int64_t panels = 4; panels > 0; --panels) {
    const TileFunction tile = kTiles<W>[product.rows - 1][panels - 1];
    if (tile != nullptr) first = MultiplyInTiles<W>(product, tile, first, panels);
  }
}

/// k's [k, k + count_k) of panel p, 8-bit weights, as float32 in the layout of that; e4m3 codes
/// times their scales and the factor that x would have, if there are scales.
template <typename W>
void Widen(const PanelProduct& product, int64_t p, int64_t k, int64_t count_k) {
  const std::byte* from = product.panels + p * product.panel_bytes;
  float* to = product.widened;
  for (const int64_t last = k + count_k; k < last;) {
    int64_t end = last;
    __m256 scale = _mm256_set1_ps(1.0F);
    if (W::kFactor != 0 && product.scales != nullptr) {
      const int64_t group = k / product.scale_cols;
      end = Least(last, (group + 1) * product.scale_cols);
      scale = _mm256_set1_ps(product.scales[p * product.scales_per_panel + group] * W::kFactor);
    }
    for (; k < end; k += 2) {
      __m256 weights[2][2];
      W::Unpack(from + k * 16, weights);
#pragma GCC unroll 2
      for (int parity = 0; parity < 2; ++parity, to += 16) {
        W::Order(weights[parity][0], weights[parity][1]);
        _mm256_store_ps(to, _mm256_mul_ps(weights[parity][0], scale));
        _mm256_store_ps(to + 8, _mm256_mul_ps(weights[parity][1], scale));
      }
    }
  }
}

/// Panels [first, first + panels) for all rows, k in blocks, by tiles of another format if the
/// blocks are to be widened.
template <typename W, typename Tiled>
void MultiplyManyRows(const PanelProduct& product, int64_t first, int64_t panels) {
  constexpr int64_t kBytesPerK = W::kRoundBytes / W::kRound;
  constexpr int64_t kMostRows = Tiled::kIsEightBit ? kEightBitRowTile : kRowTile;
  const int64_t num_tiles = (product.rows + kMostRows - 1) / kMostRows;
  const int64_t small_tile = product.rows / num_tiles;
  const int64_t large_tiles = product.rows % num_tiles;  // have small_tile + 1 rows
  for (int64_t k = 0; k < product.cols; k += kBlock) {
    const int64_t count_k = Least(kBlock, product.cols - k);
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* w = product.panels + (first + p) * product.panel_bytes + k * kBytesPerK;
      // The block of weights that comes next is fetched while the row tiles use this one.
      const std::byte* next = p + 1 < panels ? w + product.panel_bytes
                                             : w - p * product.panel_bytes + kBlock * kBytesPerK;
      if constexpr (!std::is_same_v<W, Tiled>) {
        Widen<W>(product, first + p, k, count_k);
        w = reinterpret_cast<const std::byte*>(product.widened);
      }
      const int64_t step = count_k * kBytesPerK / num_tiles;
      float* sums = product.sums + p * product.rows * 16;
      int64_t row = 0;
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t rows = small_tile + (t < large_tiles ? 1 : 0);
        kTiles<Tiled>[rows - 1][0]({.w = w,
                                    .panel_bytes = product.panel_bytes,
                                    .x = product.x + row,
                                    .first_k = k,
                                    .count_k = count_k,
                                    .from_zero = k == 0,
                                    .sums = sums + row * 16,
                                    .panel_sums = 0,
                                    .row_sums = 16,
                                    .complete = k + count_k == product.cols,
                                    .scales = product.scales,
                                    .first_panel = first + p,
                                    .prefetch = next + t * step,
                                    .prefetch_step = Tiled::kRound * kBytesPerK / num_tiles,
                                    .far_prefetch = next + t * step});
        row += rows;
      }
    }
  }
  for (int64_t p = 0; p < panels; ++p) {
    // Tiles of the format itself have scaled them.
    Finish<std::conditional_t<std::is_same_v<W, Tiled>, PlainWeights, W>>(
        product, first + p, product.sums + p * product.rows * 16);
  }
}

template <typename W>
void Multiply(const PanelProduct& product) {
  if (product.rows <= (W::kIsEightBit ? kEightBitRowTile : kRowTile)) {
    MultiplyFewRows<W>(product);
    return;
  }
  using Widened = std::conditional_t<W::kIsEightBit, Float32Weights, W>;
  const bool widen = product.rows > kMostRowsOfCodes;
  for (int64_t p = 0; p < product.num_panels; p += kPanelGroup) {
    const int64_t panels = Least(kPanelGroup, product.num_panels - p);
    if (widen) {
      MultiplyManyRows<W, Widened>(product, p, panels);
    } else {
      MultiplyManyRows<W, W>(product, p, panels);
    }
  }
}

/// All panels in tiles of P, and what is left one by one.
template <int R, int P>
void MultiplyFp4(const PanelProduct& product) {
  const int64_t ahead = P == 1 ? kReadAheadOneStream : kReadAheadBytes / 4;
  int64_t first = 0;
  const auto multiply = [&](auto tile, int64_t panels) {
    for (; first + panels <= product.num_panels; first += panels) {
      tile(product, first, ahead, product.sums);
      for (int64_t p = 0; p < panels; ++p) {
        Finish<PlainWeights>(product, first + p, product.sums + p * R * 16);
      }
    }
  };
  multiply(MultiplyFp4Tile<R, P>, P);
  multiply(MultiplyFp4Tile<R, 1>, 1);
}

void MultiplyFewRowsByFp4(const PanelProduct& product) {
  switch (product.rows) {
    case 1:
      return MultiplyFp4<1, 2>(product);
    case 2:
      return MultiplyFp4<2, 1>(product);
    case 3:
      return MultiplyFp4<3, 1>(product);
    default:
      return MultiplyFp4<kMostRowsOfFp4, 1>(product);
  }
}

template <typename Fp8>
void MultiplyFormat(const PanelProduct& product) {
  switch (product.format) {
    case DType::kF32:
      return Multiply<Float32Weights>(product);
    case DType::kF8E4M3:
      return Multiply<Fp8>(product);
    case DType::kI8:
      return Multiply<Int8Weights>(product);
    case DType::kF4E2M1:
      return MultiplyFewRowsByFp4(product);
    default:
      return Multiply<BFloat16Weights>(product);
  }
}

void ScaleRowBy(float factor, const float* x, const float* scales, int64_t group, int64_t n,
                float* y) {
  for (int64_t k = 0; k < n; k += group, ++scales) {
    const int64_t end = Least(n, k + group);
    const float scale = *scales * factor;
    int64_t i = k;
    for (; i + 8 <= end; i += 8) {
      _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale)));
    }
    for (; i < end; ++i) y[i] = x[i] * scale;
  }
}

}  // namespace

void MultiplyPanels(const PanelProduct& product) { MultiplyFormat<Fp8Weights>(product); }

void MultiplyPanelsByFloat16(const PanelProduct& product) {
  MultiplyFormat<Fp8AsFloat16Weights>(product);
}

void ScaleRow(const float* x, const float* scales, int64_t group, int64_t n, float* y) {
  ScaleRowBy(Fp8Weights::kFactor, x, scales, group, n, y);
}

void ScaleRowForFloat16(const float* x, const float* scales, int64_t group, int64_t n, float* y) {
  ScaleRowBy(Fp8AsFloat16Weights::kFactor, x, scales, group, n, y);
}

float MultiplyByFactor(float factor, int64_t count) {
  __m256 sums[4] = {};
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256 one = _mm256_set1_ps(1.0F);
  for (int64_t i = 0; i < count; ++i) {
    for (__m256& sum : sums) MultiplyAdd(factors, one, sum);
  }
  const __m256 all =
      _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
  return _mm256_cvtss_f32(all);
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
