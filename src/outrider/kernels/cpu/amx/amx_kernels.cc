#include "outrider/kernels/cpu/amx/amx_kernels.h"

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/avx512/avx512_kernels.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::amx {

namespace {

/// Codes of 8 bits are exact as bfloat16; sums over columns that share a scale are whole tiles.
int64_t LeastRowsOfTiles(DType format, int64_t scale_cols) {
  switch (format) {
    case DType::kF8E4M3:
      return scale_cols % kTileCols == 0 && scale_cols <= kWidenedCols ? kLeastRowsOfTiles : 0;
    case DType::kI8:
    case DType::kBF16:
      return kLeastRowsOfTiles;
    default:
      return 0;
  }
}

void MultiplyPanels(const PanelProduct& product) {
  if (product.x_tiles != nullptr) return MultiplyByTiles(product);
  if (product.bf16_dot_order) return MultiplyByPairs(product);
  avx512::MultiplyPanels(product);
}

void AttendEntries(const EntryBlock& block) {
  if (block.tiles != nullptr) return AttendEntriesInTiles(block);
  avx512::AttendEntries(block);
}

constexpr LeafKernels kLeaves = [] {
  LeafKernels leaves = avx512::kLeaves;
  leaves.max_fp8_weights_as_bf16 = int64_t{512}
                                   << 10;  // measured: smaller matrices are slower as codes
  leaves.multiply_panels = MultiplyPanels;
  leaves.max_tiled_rows_of_fp4 = kFewGroups * kTileRows;
  leaves.min_rows_for_tiles = LeastRowsOfTiles;
  leaves.nanoseconds_per_tile_fma = 1.0 / 600;
  leaves.round_to_tiles = avx512::RoundToTiles;
  leaves.attend_entries = AttendEntries;
  leaves.attends_in_tiles = true;
  return leaves;
}();

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("amx");
  return kTable;
}

}  // namespace outrider::cpu::amx
