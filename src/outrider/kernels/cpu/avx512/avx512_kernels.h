// The kernel table for processors with AVX-512 F, BW, VL and DQ.
#pragma once

#include "outrider/kernels/cpu/avx2/avx2_kernels.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::avx512 {

/// What is left to AVX2 takes little of a step.
inline constexpr LeafKernels kLeaves = [] {
  LeafKernels leaves = avx2::kLeavesByFloat16;
  leaves.multiply_panels = MultiplyPanels;
  leaves.max_rows_of_fp4 = kMostRowsOfCodes;
  leaves.widen_fp4_panel = WidenFp4Panel;
  leaves.widen_nvfp4_panel = WidenNvfp4Panel;
  leaves.widen_int4_panel = WidenInt4Panel;
  leaves.max_rows_widened_in_registers = kMostRowsOfCodes;
  leaves.attend_keys = AttendKeys;
  leaves.attend_entries = AttendEntries;
  leaves.attend_in_row_lanes = AttendInRowLanes;
  leaves.rows_per_vector = 16;
  leaves.merge_partial = MergePartial;
  return leaves;
}();

const KernelTable& Kernels();

}  // namespace outrider::cpu::avx512
