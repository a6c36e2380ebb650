#include "outrider/kernels/cpu/avx512_bf16/avx512_bf16_kernels.h"

#include "outrider/kernels/cpu/avx512/avx512_kernels.h"
#include "outrider/kernels/cpu/avx512_bf16/leaves.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx512_bf16 {

namespace {

/// Codes of 8 bits are exact as bfloat16. Blocks of columns, which are whole tiles, have one scale.
int64_t LeastRowsOfTiles(DType format, int64_t scale_cols) {
  switch (format) {
    case DType::kF8E4M3:
      return scale_cols % kTileCols == 0 && scale_cols <= kWidenedCols ? 1 : 0;
    case DType::kI8:
    case DType::kBF16:
      return 1;
    default:
      return 0;
  }
}

void MultiplyPanels(const PanelProduct& product) {
  if (product.x_tiles != nullptr) return MultiplyByDots(product);
  avx512::MultiplyPanels(product);
}

constexpr LeafKernels kLeaves = [] {
  LeafKernels leaves = avx512::kLeaves;
  leaves.multiply_panels = MultiplyPanels;
  leaves.max_tiled_rows_of_fp4 = kMostRowsOfFp4;
  leaves.min_rows_for_tiles = LeastRowsOfTiles;
  leaves.nanoseconds_per_tile_fma = 1.0 / 100;
  leaves.attend_entries = AttendEntries;
  leaves.attend_in_row_lanes = nullptr;  // it multiplies float32
  leaves.round_to_tiles = avx512::RoundToTiles;
  return leaves;
}();

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx512_bf16");
  return kTable;
}

}  // namespace outrider::cpu::avx512_bf16
