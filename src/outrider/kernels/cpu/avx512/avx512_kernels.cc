#include "outrider/kernels/cpu/avx512/avx512_kernels.h"

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx512 {

namespace {

// What is left to AVX2 takes little of a step; attend_keys serves prompts.
constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
    .most_rows_of_codes = kMostRowsOfCodes,
    .scale_row = avx2::ScaleRowForFloat16,
    .round_to_bfloat16 = avx2::RoundToBFloat16Row,
    .attend_keys = avx2::AttendKeys,
    .attend_entries = AttendEntries,
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
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx512");
  return kTable;
}

}  // namespace outrider::cpu::avx512
