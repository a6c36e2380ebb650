// Panel products in AMX tiles: 16 rows x 32 columns of x times 32 columns of a panel, whose layout
// is what the unit takes, give 16 x 16 sums. (Up to 64 rows: few_group_tiles.cc.)
//
// Two groups of rows times two panels use each tile that is loaded twice, and four sums hide the
// unit's latency; a group that is left over goes with four panels at a time. The work is cut into
// units: a block of columns of kPanelGroup panels, read from memory once while all rows pass over
// it. Units go over the panels of a run first, so that the rows' share of a block of columns stays
// in L2, and sums wait in memory between blocks. The next unit is fetched into L2 meanwhile.
// Weights of 8 bits are widened per unit.

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

constexpr int64_t kLeastColumns = 512;
constexpr int64_t kMostColumns = 2048;
constexpr int64_t kRowsElements = int64_t{512} << 10;  // of a block of columns, in L2

/// Weights of 8 bits.
template <typename W>
constexpr bool kIsNarrow = W::kRound == 4;

int64_t Groups(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

/// A block of columns of up to kPanelGroup panels.
struct Unit {
  int64_t run;  // first panel of the run
  int64_t panel, panels;
  int64_t k, count_k;

  int64_t tiles() const { return (count_k + kTileCols - 1) / kTileCols; }
};

/// The units of a product in order.
class Units {
 public:
  template <typename W>
  static Units Of(const PanelProduct& product) {
    const int64_t fitting = kRowsElements / product.rows;
    int64_t most = fitting > kMostColumns    ? kMostColumns
                   : fitting < kLeastColumns ? kLeastColumns
                                             : fitting;
    if (kIsNarrow<W>) most = W::kFactor != 0 ? product.scale_cols : kWidenedCols;
    return Units(product, most, W::kFactor != 0);
  }

  int64_t count() const { return blocks_ * groups_; }

  Unit At(int64_t index) const {
    const int64_t run = index / (kRunGroups * blocks_) * kRunGroups;
    const int64_t in_run = index - run * blocks_;
    const int64_t groups = Least(kRunGroups, groups_ - run);
    const int64_t k = in_run / groups * block_k_;
    const int64_t panel = (run + in_run % groups) * kPanelGroup;
    return {.run = run * kPanelGroup,
            .panel = panel,
            .panels = Least(kPanelGroup, num_panels_ - panel),
            .k = k,
            .count_k = Least(block_k_, cols_ - k)};
  }

 private:
  /// Blocks of equal size, or of the most columns.
  Units(const PanelProduct& product, int64_t most, bool whole)
      : num_panels_(product.num_panels),
        cols_(product.cols),
        groups_((product.num_panels + kPanelGroup - 1) / kPanelGroup),
        blocks_((product.cols + most - 1) / most),
        block_k_(whole ? most : ((cols_ + blocks_ - 1) / blocks_ + 31) / 32 * 32) {
    blocks_ = (cols_ + block_k_ - 1) / block_k_;
  }

  static constexpr int64_t kRunGroups = kTilePanelGroup / kPanelGroup;

  int64_t num_panels_, cols_;
  int64_t groups_;  // of panels
  int64_t blocks_, block_k_;
};

/// Fetches the weights of the next unit into L2, spread over the steps of this one.
class ReadAhead {
 public:
  /// next: at its first panel and column.
  ReadAhead(const std::byte* next, int64_t panel_bytes, int64_t panels, int64_t tiles,
            int64_t tile_bytes, int64_t steps)
      : at_(next),
        panel_bytes_(panel_bytes),
        panels_(panels),
        tile_bytes_(tile_bytes),
        tiles_(panels * tiles),
        steps_(steps) {}

  void Step() {
    due_ += tiles_;
    for (; due_ >= steps_; due_ -= steps_) {
      const auto* tile = reinterpret_cast<const char*>(at_ + panel_ * panel_bytes_);
      for (int64_t i = 0; i < tile_bytes_; i += 64) _mm_prefetch(tile + i, _MM_HINT_T1);
      if (++panel_ < panels_) continue;
      panel_ = 0;
      at_ += tile_bytes_;
    }
  }

 private:
  const std::byte* at_;
  int64_t panel_bytes_, panels_, tile_bytes_;
  int64_t tiles_, steps_;
  int64_t due_ = 0;
  int64_t panel_ = 0;
};

/// One or two groups of rows times some panels of a unit.
struct Pass {
  const BFloat16* rows[2] = {};
  int64_t row_elements[2] = {};      // of a tile
  const std::byte* weights[4] = {};  // of each panel
  const std::byte* ends = nullptr;   // last tiles that are filled up with zeros, or null
  int64_t tiles = 0;                 // without those
  float* sums[4] = {};
  bool from_zero = false;
};

template <int kFrom, int kCount>
inline __attribute__((always_inline)) void BeginSums(const Pass& pass) {
  if constexpr (kCount > 0) {
    if (pass.from_zero) {
      ZeroTile<kFrom>();
    } else {
      LoadTile<kFrom>(pass.sums[kFrom]);
    }
    BeginSums<kFrom + 1, kCount - 1>(pass);
  }
}

template <int kFrom, int kCount>
inline __attribute__((always_inline)) void EndSums(const Pass& pass) {
  if constexpr (kCount > 0) {
    StoreTile<kFrom>(pass.sums[kFrom]);
    EndSums<kFrom + 1, kCount - 1>(pass);
  }
}

/// Sums 0 and 2 are of the first panel, 1 and 3 of the second.
template <int P>
void MultiplyTwoGroups(const Pass& pass, ReadAhead& ahead) {
  const auto step = [&](int64_t i, const std::byte* first, const std::byte* second) {
    LoadTile<4>(pass.rows[0] + i * pass.row_elements[0]);
    LoadTile<6>(first);
    MultiplyTiles<0, 4, 6>();
    if constexpr (P == 2) {
      LoadTile<7>(second);
      MultiplyTiles<1, 4, 7>();
    }
    LoadTile<5>(pass.rows[1] + i * pass.row_elements[1]);
    MultiplyTiles<2, 5, 6>();
    if constexpr (P == 2) MultiplyTiles<3, 5, 7>();
    ahead.Step();
  };
  BeginSums<0, 4>(pass);
  for (int64_t i = 0; i < pass.tiles; ++i) {
    step(i, pass.weights[0] + i * kTileBytes, pass.weights[1] + i * kTileBytes);
  }
  if (pass.ends != nullptr) step(pass.tiles, pass.ends, pass.ends + kTileBytes);
  EndSums<0, 4>(pass);
}

/// Sum p is of panel p.
template <int P>
void MultiplyOneGroup(const Pass& pass, ReadAhead& ahead) {
  const auto step = [&](int64_t i, const std::byte* const(&weights)[4]) {
    LoadTile<4>(pass.rows[0] + i * pass.row_elements[0]);
    LoadTile<5>(weights[0]);
    MultiplyTiles<0, 4, 5>();
    if constexpr (P >= 2) {
      LoadTile<6>(weights[1]);
      MultiplyTiles<1, 4, 6>();
    }
    if constexpr (P >= 3) {
      LoadTile<7>(weights[2]);
      MultiplyTiles<2, 4, 7>();
    }
    if constexpr (P >= 4) {
      LoadTile<5>(weights[3]);
      MultiplyTiles<3, 4, 5>();
    }
    ahead.Step();
  };
  BeginSums<0, P>(pass);
  const auto* const* w = pass.weights;
  for (int64_t i = 0; i < pass.tiles; ++i) {
    const int64_t at = i * kTileBytes;
    step(i, {w[0] + at, w[1] + at, w[2] + at, w[3] + at});
  }
  if (pass.ends != nullptr) {
    const std::byte* e = pass.ends;
    step(pass.tiles, {e, e + kTileBytes, e + 2 * kTileBytes, e + 3 * kTileBytes});
  }
  EndSums<0, P>(pass);
}

using PassFunction = void (*)(const Pass&, ReadAhead&);
constexpr PassFunction kTwoGroups[2] = {MultiplyTwoGroups<1>, MultiplyTwoGroups<2>};
constexpr PassFunction kOneGroup[4] = {MultiplyOneGroup<1>, MultiplyOneGroup<2>,
                                       MultiplyOneGroup<3>, MultiplyOneGroup<4>};

/// Codes of 8 bits of a unit's panels as bfloat16, in whole tiles.
template <typename W>
void WidenUnit(const PanelProduct& product, const Unit& unit, ReadAhead& ahead) {
  for (int64_t p = 0; p < unit.panels; ++p) {
    const std::byte* from = product.panels + (unit.panel + p) * product.panel_bytes + unit.k * 16;
    float* to = product.widened + p * kWidenedCols * 8;
    float* const end = to + unit.tiles() * kTileBytes / 4;
    for (int64_t k = 0; k < unit.count_k; k += 4, from += 64, to += 32) {
      WidenCodes<W>(from, to);
      if (k % kTileCols == 0) ahead.Step();
    }
    for (; to < end; to += 16) _mm512_store_si512(to, _mm512_setzero_si512());
  }
}

/// The product of one format, unit by unit. (Never inlined: what it computes between tiles is to
/// stay between the changes of the vector unit's mode.)
template <typename W>
class TileProduct {
 public:
  explicit TileProduct(const PanelProduct& product)
      : product_(product), units_(Units::Of<W>(product)), groups_(Groups(product.rows)) {}

  __attribute__((noinline)) void Run() {
    for (int64_t i = 0; i < units_.count(); ++i) {
      const Unit unit = units_.At(i);
      const int64_t passes = groups_ / 2 * ((unit.panels + 1) / 2) + groups_ % 2;
      const Unit next = units_.At(i + 1 < units_.count() ? i + 1 : i);
      ReadAhead ahead(WeightsOf(next.panel, next.k), product_.panel_bytes,
                      i + 1 < units_.count() ? next.panels : 0, next.tiles(), kNarrowTileBytes,
                      (passes + (kIsNarrow<W> ? unit.panels : 0)) * unit.tiles());
      if constexpr (kIsNarrow<W>) WidenUnit<W>(product_, unit, ahead);
      CopyEnds(unit);
      RunUnit(unit, ahead);
    }
  }

 private:
  static constexpr int64_t kBytesPerColumn = W::kRoundBytes / W::kRound;
  static constexpr int64_t kNarrowTileBytes = kTileCols * kBytesPerColumn;

  const std::byte* WeightsOf(int64_t panel, int64_t k) const {
    return product_.panels + panel * product_.panel_bytes + k * kBytesPerColumn;
  }

  /// The last tiles of bfloat16 panels whose columns are not whole tiles.
  void CopyEnds(const Unit& unit) {
    has_ends_ = !kIsNarrow<W> && unit.count_k % kTileCols != 0;
    if (!has_ends_) return;
    const int64_t whole = product_.cols / kTileCols * kTileCols;
    const int64_t bytes = product_.panel_bytes - whole * kBytesPerColumn;
    std::memset(ends_, 0, sizeof(ends_));
    for (int64_t p = 0; p < unit.panels; ++p) {
      std::memcpy(ends_ + p * kTileBytes, WeightsOf(unit.panel + p, whole),
                  static_cast<size_t>(bytes));
    }
  }

  int64_t RowsOf(int64_t group) const {
    return Least(kTileRows, product_.rows - group * kTileRows);
  }

  float* SumsOf(const Unit& unit, int64_t panel, int64_t group) const {
    return product_.sums + ((panel - unit.run) * groups_ + group) * kTileSums;
  }

  void RunUnit(const Unit& unit, ReadAhead& ahead) {
    int64_t group = 0;
    for (; group + 2 <= groups_; group += 2) {
      shapes_.UseTwoGroups(kTileRows, RowsOf(group + 1));
      for (int64_t p = 0; p < unit.panels; p += 2) {
        const int64_t panels = Least(2, unit.panels - p);
        RunPass(unit, {group, 2}, {p, panels}, kTwoGroups[panels - 1], ahead);
      }
    }
    if (group < groups_) {
      shapes_.UseOneGroup(RowsOf(group));
      RunPass(unit, {group, 1}, {0, unit.panels}, kOneGroup[unit.panels - 1], ahead);
    }
  }

  struct Range {
    int64_t first, count;
  };

  /// panels: of the unit.
  void RunPass(const Unit& unit, Range groups, Range panels, PassFunction multiply,
               ReadAhead& ahead) {
    constexpr bool kHasGroups = W::kFactor != 0;  // columns that share a scale: those of a unit
    alignas(64) float products[4 * kTileSums];
    Pass pass = {.tiles = unit.tiles() - (has_ends_ ? 1 : 0),
                 .from_zero = unit.k == 0 || kHasGroups};
    pass.ends = has_ends_ ? ends_ + panels.first * kTileBytes : nullptr;
    for (int64_t g = 0; g < groups.count; ++g) {
      const int64_t group = groups.first + g;
      pass.row_elements[g] = RowsOf(group) * kTileCols;
      pass.rows[g] = product_.x_tiles + group * TiledElements(kTileRows, product_.cols) +
                     unit.k * RowsOf(group);
    }
    for (int64_t p = 0; p < 4; ++p) {
      const int64_t panel = panels.first + Least(p, panels.count - 1);
      pass.weights[p] = kIsNarrow<W> ? reinterpret_cast<const std::byte*>(product_.widened) +
                                           panel * kWidenedCols * 32
                                     : WeightsOf(unit.panel + panel, unit.k);
    }
    // A single panel of two groups has sums 0 and 2.
    const int64_t stride = groups.count == 2 ? 2 : panels.count;
    for (int64_t i = 0; i < 4; ++i) pass.sums[i] = products + i * kTileSums;
    for (int64_t g = 0; g < groups.count && !kHasGroups; ++g) {
      for (int64_t p = 0; p < panels.count; ++p) {
        pass.sums[g * stride + p] = SumsOf(unit, unit.panel + panels.first + p, groups.first + g);
      }
    }
    multiply(pass, ahead);
    for (int64_t g = 0; g < groups.count; ++g) {
      for (int64_t p = 0; p < panels.count; ++p) {
        const int64_t panel = unit.panel + panels.first + p;
        const int64_t group = groups.first + g;
        float* sums = SumsOf(unit, panel, group);
        if (kHasGroups) {
          AddScaled<W>(product_, panel, unit.k / product_.scale_cols, RowsOf(group),
                       pass.sums[g * stride + p], sums);
        }
        if (unit.k + unit.count_k == product_.cols) {
          FinishSums<W>(product_, panel, group * kTileRows, RowsOf(group), sums);
        }
      }
    }
  }

  const PanelProduct& product_;
  const Units units_;
  const int64_t groups_;  // of rows
  TileShapes shapes_;
  bool has_ends_ = false;
  alignas(64) std::byte ends_[kPanelGroup * kTileBytes];
};

}  // namespace

void MultiplyByTiles(const PanelProduct& product) {
  if (product.rows <= kFewGroups * kTileRows) return MultiplyFewGroupsByTiles(product);
  const SubnormalsAreZero mode;
  switch (product.format) {
    case DType::kF8E4M3:
      return TileProduct<avx512::Fp8Weights>(product).Run();
    case DType::kI8:
      return TileProduct<avx512::Int8Weights>(product).Run();
    default:
      return TileProduct<avx512::BFloat16Weights>(product).Run();
  }
}

}  // namespace outrider::cpu::amx
