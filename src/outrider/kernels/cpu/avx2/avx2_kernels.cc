#include "outrider/kernels/cpu/avx2/avx2_kernels.h"

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
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

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx2");
  return kTable;
}

}  // namespace outrider::cpu::avx2
