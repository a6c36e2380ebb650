// The kernel table for processors with AVX2, FMA and F16C.
#pragma once

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::avx2 {

inline constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
    .max_rows_widened_in_registers = kMostRowsOfCodes,
    .scale_row = ScaleRow,
    .max_rows_of_fp4 = kMostRowsOfFp4,
    .widen_fp4_panel = WidenFp4Panel,
    .widen_nvfp4_panel = WidenNvfp4Panel,
    .widen_int4_panel = WidenInt4Panel,
    .round_to_bfloat16 = RoundToBFloat16Row,
    .attend_keys = AttendKeys,
    .attend_entries = AttendEntries,
    .merge_partial = MergePartial,
    .divide = DivideRow,
    .rms_norm = RmsNormRow,
    .silu_mul = SiluMulRow,
    .rotate = RotateRow,
    .widen = WidenRow,
    .narrow = NarrowRow,
    .add_weighted = AddWeightedRows,
};

inline constexpr LeafKernels kLeavesByFloat16 = [] {
  LeafKernels leaves = kLeaves;
  leaves.multiply_panels = MultiplyPanelsByFloat16;
  leaves.scale_row = ScaleRowForFloat16;
  return leaves;
}();

const KernelTable& Kernels();

}  // namespace outrider::cpu::avx2
