// Products with FP4 codes of one or two rows by FMAs, with the bits of TDPBF16PS (pair_leaves.cc).

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/amx/vectors.h"
#include "outrider/kernels/cpu/avx512/fp4_tiles.h"

namespace outrider::cpu::amx {

namespace {

/// With two chains for each sum, and a total.
struct Tiles {
  static int64_t MostPanels(int64_t rows) { return rows == 1 ? 4 : 2; }

  static avx512::Fp4TileFunction Of(int64_t rows, int64_t panels) {
    using avx512::MultiplyFp4Tile;
    static constexpr avx512::Fp4TileFunction kOf[kLeastRowsOfTiles - 1][4] = {
        {MultiplyFp4Tile<1, 1, true>, MultiplyFp4Tile<1, 2, true>, MultiplyFp4Tile<1, 3, true>,
         MultiplyFp4Tile<1, 4, true>},
        {MultiplyFp4Tile<2, 1, true>, MultiplyFp4Tile<2, 2, true>}};
    return kOf[rows - 1][panels - 1];
  }
};

}  // namespace

void MultiplyFp4ByPairs(const PanelProduct& product) {
  const SubnormalsAreZero mode;
  avx512::MultiplyFp4<Tiles>(product);
}

}  // namespace outrider::cpu::amx
