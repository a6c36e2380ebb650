#include "outrider/kernels/cpu/amx/amx_kernels.h"

#include "outrider/kernels/cpu/amx/leaves.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::amx {

namespace {

/// Codes of 8 bits are exact as bfloat16; sums over columns that share a scale are whole tiles.
int64_t LeastRowsOfTiles(DType format, int64_t scale_cols) {
  switch (format) {
    case DType::kF8E4M3:
      return scale_cols % kTileCols == 0 && scale_cols <= kWidenedCols ? kLeastRowsOfCodeTiles : 0;
    case DType::kI8:
      return kLeastRowsOfCodeTiles;
    case DType::kBF16:
      return kLeastRowsOfTiles;
    default:
      return 0;
  }
}

void MultiplyPanels(const PanelProduct& product) {
  if (product.x_tiles != nullptr) return MultiplyByTiles(product);
  if (product.unit_order) return MultiplyByPairs(product);
  avx512::MultiplyPanels(product);
}

void AttendEntries(const EntryBlock& block) {
  if (block.tiles != nullptr) return AttendEntriesInTiles(block);
  avx512::AttendEntries(block);
}

constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
    .most_rows_of_codes = avx512::kMostRowsOfCodes,
    .scale_row = avx2::ScaleRowForFloat16,
    .least_rows_of_tiles = LeastRowsOfTiles,
    .round_to_tiles = RoundToTiles,
    .round_to_bfloat16 = avx2::RoundToBFloat16Row,
    .attend_keys = avx2::AttendKeys,
    .attend_entries = AttendEntries,
    .attends_in_tiles = true,
    .merge_partial = avx2::MergePartial,
    .divide = avx2::DivideRow,
    .rms_norm = avx2::RmsNormRow,
    .silu_mul = avx2::SiluMulRow,
    .rotate = avx2::RotateRow,
    .widen = avx2::WidenRow,
    .narrow = avx2::NarrowRow,
    .add_weighted = avx2::AddWeightedRows,
};

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("amx");
  return kTable;
}

}  // namespace outrider::cpu::amx
