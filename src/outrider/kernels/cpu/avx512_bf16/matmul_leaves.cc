// Panel products with VDPBF16PS: two columns of a panel, 16 outputs each, are one register as they
// lie in memory, and meet the same two elements of a row. Each sum is one chain, so all ways below
// give the same bits; a tile of R rows x P panels keeps up to 24 sums.
//
// Up to kFewRows rows one tile covers all rows and the weights stream through once, codes of 8 bits
// being looked up on the way. For more rows the columns come in blocks: the block of a panel group
// stays in L1 while the row tiles pass over it, codes are widened for that once, and the sums wait
// in memory between blocks.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/weight_formats.h"
#include "outrider/kernels/cpu/avx512_bf16/code_pairs.h"
#include "outrider/kernels/cpu/avx512_bf16/leaves.h"
#include "outrider/kernels/cpu/avx512_bf16/vectors.h"

namespace outrider::cpu::avx512_bf16 {

namespace {

constexpr int64_t kFewRows = 8;
constexpr int64_t kManyRowTile = 6;  // with whole panel groups
constexpr int64_t kBlock = 128;      // columns; blocks of e4m3 codes have one scale
constexpr int kPairs = kTileCols / 2;

/// Weights as they lie in memory or, widened, in L1.
struct PairWeights {
  static constexpr bool kIsNarrow = false;
  static constexpr bool kHasGroups = false;  // columns that share a scale
  static constexpr int64_t kBytesPerPair = 64;
  static constexpr int64_t kFetchedPerPair = 64;
  static constexpr int64_t kMostPanels[kFewRows] = {4, 4, 4, 4, 4, 4, 3, 3};

  class Reader {
   public:
    __attribute__((always_inline)) void Read(const std::byte* from, __m512i& first,
                                             __m512i& second) const {
      first = _mm512_load_si512(from);
      second = _mm512_load_si512(from + 64);
    }
  };
};

struct CodeWeights {
  static constexpr bool kIsNarrow = true;
  static constexpr int64_t kBytesPerPair = 32;
  static constexpr int64_t kFetchedPerPair = 32;
  // Six registers hold tables.
  static constexpr int64_t kMostPanels[kFewRows] = {4, 4, 4, 4, 3, 3, 2, 2};
};

struct Int8Codes : CodeWeights {
  static constexpr bool kHasGroups = false;
  static constexpr CodeTables kTables = TablesOf([](int n, int k) { return k * 16 + n; },
                                                 [](int code) { return static_cast<float>(code); });
  using Reader = CodeReader<kTables, true>;
};

struct Fp8Codes : CodeWeights {
  static constexpr bool kHasGroups = true;
  static constexpr CodeTables kTables = TablesOf(
      [](int n, int k) { return k / 2 * 32 + n % 8 * 4 + n / 8 * 2 + k % 2; },
      [](int code) {
        const int exponent = code / 8;  // 0: of subnormal codes, which begin with no one
        const auto eighths = static_cast<float>(exponent == 0 ? code : 8 + code % 8);
        const int power = (exponent == 0 ? 1 : exponent) - 7 - 3;
        return eighths * __builtin_bit_cast(float, static_cast<uint32_t>(power + 127) << 23);
      });
  using Reader = CodeReader<kTables, false>;
};

struct TileArgs {
  const std::byte* w;  // the first panel, at the tile's first column
  int64_t panel_bytes;
  const BFloat16* x;  // row 0 at that column, the first of a tile of x
  int64_t x_step;     // elements from one tile of x to the next
  int64_t columns_of_k;
  // Sums so far, or null for zero, and where they wait, or null when they are finished and go to y;
  // panel p, row r at p * panel_sums + r * 16.
  const float* from;
  float* to;
  int64_t panel_sums;
  const float* scales;  // with groups: of these columns of the first panel
  int64_t scales_per_panel;
  const float* output_scales;  // of the first panel's outputs, or null
  float* y;                    // row 0, at the first panel's outputs
  int64_t y_stride;
  int64_t outputs;  // from there on
  bool accumulate;
  // What is to come is fetched along the way, as many bytes of each panel as are used: from `fetch`
  // on, if not null, and from `jump` bytes farther on once column jump_k is reached.
  const std::byte* fetch;
  int64_t fetch_panel_bytes;
  int64_t jump_k;
  int64_t jump;
};

/// Adds the products of kCount pairs of columns to the sums of every row and panel. x: row 0's
/// pairs.
template <int R, int P, int kCount, typename W>
inline __attribute__((always_inline)) void AddPairs(const typename W::Reader& reader,
                                                    const float* x, const std::byte* w,
                                                    const std::byte* fetch, const TileArgs& args,
                                                    __m512 (&acc)[R][P]) {
  __m512i weights[P][2];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const std::byte* at = w + p * args.panel_bytes;
    if constexpr (kCount == 2) {
      reader.Read(at, weights[p][0], weights[p][1]);
    } else {
      weights[p][0] = _mm512_load_si512(at);
    }
  }
  if (args.fetch != nullptr) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::byte* line = fetch + p * args.fetch_panel_bytes;
      avx512::FetchAhead(line);
      if constexpr (kCount * W::kFetchedPerPair > 64) avx512::FetchAhead(line + 64);
    }
  }
#pragma GCC unroll 2
  for (int pair = 0; pair < kCount; ++pair) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i both = _mm512_castps_si512(_mm512_set1_ps(x[r * kPairs + pair]));
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) AddDots(weights[p][pair], both, acc[r][p]);
      // Or the compiler reads all of x early, and has too few registers for the sums.
      asm volatile("" ::: "memory");
    }
  }
}

template <int R, int P, typename W>
void Tile(const TileArgs& args) {
  __m512 acc[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      acc[r][p] = args.from == nullptr || W::kHasGroups
                      ? _mm512_setzero_ps()
                      : _mm512_load_ps(args.from + p * args.panel_sums + r * 16);
    }
  }
  const typename W::Reader reader;
  const std::byte* w = args.w;
  const auto* x = reinterpret_cast<const float*>(args.x);  // a pair at a time
  const std::byte* fetch = args.fetch;
  int64_t k = 0;
  const auto add_two = [&](int pair) __attribute__((always_inline)) {
    AddPairs<R, P, 2, W>(reader, x + pair, w, fetch, args, acc);
    w += 2 * W::kBytesPerPair;
    fetch += 2 * W::kFetchedPerPair;
  };
  for (; k + kTileCols <= args.columns_of_k; k += kTileCols, x += args.x_step / 2) {
    if (k == args.jump_k) fetch += args.jump;
#pragma GCC unroll 1
    for (int pair = 0; pair < kPairs; pair += 2) add_two(pair);
  }
  // Codes have whole pairs of pairs only, and an odd last column of bfloat16 a zero beside it.
  for (; k + 2 < args.columns_of_k; k += 4, x += 2) add_two(0);
  if constexpr (!W::kIsNarrow) {
    if (k < args.columns_of_k) AddPairs<R, P, 1, W>(reader, x, w, fetch, args, acc);
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const int64_t outputs = args.outputs - p * 16;
    const auto mask = static_cast<__mmask16>(outputs < 16 ? 0xffffU >> (16 - outputs) : 0xffffU);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 sum = acc[r][p];
      if constexpr (W::kHasGroups) {
        const __m512 before = args.from == nullptr
                                  ? _mm512_setzero_ps()
                                  : _mm512_load_ps(args.from + p * args.panel_sums + r * 16);
        sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(args.scales[p * args.scales_per_panel]), before);
      }
      if (args.to != nullptr) {
        _mm512_store_ps(args.to + p * args.panel_sums + r * 16, sum);
        continue;
      }
      if (args.output_scales != nullptr) {
        sum = _mm512_mul_ps(sum, _mm512_loadu_ps(args.output_scales + p * 16));
      }
      float* y = args.y + r * args.y_stride + p * 16;
      if (args.accumulate) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sum);
      _mm512_mask_storeu_ps(y, mask, sum);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

/// By the numbers of rows - 1 and of panels - 1.
template <int R, typename W>
constexpr TileFunction kTilesOfRow[kPanelGroup] = {Tile<R, 1, W>, Tile<R, 2, W>,
                                                   Tile<R, W::kMostPanels[R - 1] >= 3 ? 3 : 1, W>,
                                                   Tile<R, W::kMostPanels[R - 1] >= 4 ? 4 : 1, W>};
template <typename W>
constexpr const TileFunction* kTiles[kFewRows] = {
    kTilesOfRow<1, W>, kTilesOfRow<2, W>, kTilesOfRow<3, W>, kTilesOfRow<4, W>,
    kTilesOfRow<5, W>, kTilesOfRow<6, W>, kTilesOfRow<7, W>, kTilesOfRow<8, W>};

/// The product of one format.
template <typename W>
class Product {
 public:
  explicit Product(const PanelProduct& product)
      : product_(product), block_(W::kHasGroups ? product.scale_cols : kBlock) {}

  void Run() {
    if (product_.rows <= kFewRows) return MultiplyFewRows();
    for (int64_t p = 0; p < product_.num_panels; p += kPanelGroup) {
      MultiplyManyRows(p, Least(kPanelGroup, product_.num_panels - p));
    }
  }

 private:
  static constexpr int64_t kBytesPerColumn = W::kBytesPerPair / 2;

  /// Columns [k, k + count) of panels from `panel` on, for all of `x` and the sums.
  TileArgs Args(int64_t panel, int64_t k, int64_t count) const {
    const bool last = k + count == product_.cols;
    return {.w = product_.panels + panel * product_.panel_bytes + k * kBytesPerColumn,
            .panel_bytes = product_.panel_bytes,
            .x = product_.x_tiles + k * product_.rows,
            .x_step = product_.rows * kTileCols,
            .columns_of_k = count,
            .from = k == 0 ? nullptr : product_.sums,
            .to = last ? nullptr : product_.sums,
            .panel_sums = product_.rows * 16,
            .scales = W::kHasGroups ? product_.scales + panel * product_.scales_per_panel +
                                          k / product_.scale_cols
                                    : nullptr,
            .scales_per_panel = product_.scales_per_panel,
            .output_scales = product_.format == DType::kI8 ? product_.scales + panel * 16 : nullptr,
            .y = product_.y + panel * 16,
            .y_stride = product_.y_stride,
            .outputs = product_.columns - panel * 16,
            .accumulate = product_.accumulate,
            .fetch = nullptr,
            .fetch_panel_bytes = product_.panel_bytes,
            .jump_k = -1,
            .jump = 0};
  }

  /// All rows in one tile: every panel is read once, from its start to its end. The panels of a
  /// tile are as many streams; each reads ahead in itself and, towards its end, in its successor of
  /// the next tile.
  void MultiplyFewRows() {
    const int64_t most_panels = W::kMostPanels[product_.rows - 1];
    constexpr int64_t kTileBytes = kPairs * W::kBytesPerPair;  // of kTileCols columns of a panel
    const int64_t tiles = product_.cols / kTileCols;
    const int64_t tiles_ahead =
        Least(tiles, avx512::kReadAheadBytes / most_panels / kTileBytes + 1);
    const int64_t near_k = (tiles - tiles_ahead) * kTileCols;
    const int64_t block = W::kHasGroups ? block_ : product_.cols;
    for (int64_t p = 0; p < product_.num_panels; p += most_panels) {
      const int64_t panels = Least(most_panels, product_.num_panels - p);
      for (int64_t k = 0; k < product_.cols; k += block) {
        TileArgs args = Args(p, k, Least(block, product_.cols - k));
        const int64_t ahead = tiles_ahead * kTileBytes;
        const int64_t ahead_at_end = panels * product_.panel_bytes - near_k * kBytesPerColumn;
        args.fetch = args.w + (k <= near_k ? ahead : ahead_at_end);
        args.jump_k = near_k - k;
        args.jump = ahead_at_end - ahead;
        kTiles<W>[product_.rows - 1][panels - 1](args);
      }
    }
  }

  /// Panels [first, first + panels) for all rows.
  void MultiplyManyRows(int64_t first, int64_t panels) {
    for (int64_t k = 0; k < product_.cols; k += block_) {
      TileArgs args = Args(first, k, Least(block_, product_.cols - k));
      // The next block, which may be the next panels' first one: the last tile fetches it.
      const std::byte* next = args.to != nullptr
                                  ? args.w + block_ * kBytesPerColumn
                                  : product_.panels + (first + panels) * product_.panel_bytes;
      if constexpr (W::kIsNarrow) {
        for (int64_t p = 0; p < panels; ++p) {
          Widen(args.w + p * args.panel_bytes, args.columns_of_k,
                product_.widened + p * block_ * 8);
        }
        args.w = reinterpret_cast<const std::byte*>(product_.widened);
        args.panel_bytes = block_ * 32;
      }
      for (int64_t group = 0; group < product_.rows; group += kTileRows) {
        const int64_t group_rows = Least(kTileRows, product_.rows - group);
        const int64_t tiles = (group_rows + kManyRowTile - 1) / kManyRowTile;
        args.x_step = group_rows * kTileCols;
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t row = group_rows * t / tiles;
          const int64_t rows = group_rows * (t + 1) / tiles - row;
          args.x = product_.x_tiles + TiledElements(group, product_.cols) + k * group_rows +
                   row * kTileCols;
          if (group + row + rows == product_.rows) args.fetch = next;
          kTiles<Tiled>[rows - 1][panels - 1](args);
          if (args.from != nullptr) args.from += rows * 16;
          if (args.to != nullptr) args.to += rows * 16;
          args.y += rows * product_.y_stride;
        }
      }
    }
  }

  static void Widen(const std::byte* from, int64_t columns, float* to) {
    const typename W::Reader reader;
    for (int64_t k = 0; k < columns; k += 4, from += 64, to += 32) {
      __m512i first;
      __m512i second;
      reader.Read(from, first, second);
      _mm512_store_si512(to, first);
      _mm512_store_si512(to + 16, second);
    }
  }

  /// Blocks in L1: codes have become pairs there, with the scales of their format.
  struct Tiled : PairWeights {
    static constexpr bool kHasGroups = W::kHasGroups;
    static constexpr int64_t kFetchedPerPair = W::kFetchedPerPair;
  };

  const PanelProduct& product_;
  const int64_t block_;
};

}  // namespace

void MultiplyByDots(const PanelProduct& product) {
  switch (product.format) {
    case DType::kF8E4M3:
      return Product<Fp8Codes>(product).Run();
    case DType::kI8:
      return Product<Int8Codes>(product).Run();
    case DType::kF4E2M1:
      return MultiplyFewRowsByFp4(product);
    default:
      return Product<PairWeights>(product).Run();
  }
}

}  // namespace outrider::cpu::avx512_bf16
