#include "outrider/kernels/cpu/avx2/avx2_kernels.h"

#include <algorithm>
#include <chrono>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/leaves_table.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
    .most_rows_of_codes = kMostRowsOfCodes,
    .scale_row = ScaleRow,
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

constexpr LeafKernels kLeavesByFloat16 = [] {
  LeafKernels leaves = kLeaves;
  leaves.multiply_panels = MultiplyPanelsByFloat16;
  leaves.scale_row = ScaleRowForFloat16;
  return leaves;
}();

double SecondsWithFactor(float factor) {
  using Clock = std::chrono::steady_clock;
  double best = 1;
  for (int i = 0; i < 8; ++i) {
    const Clock::time_point start = Clock::now();
    const volatile float sum = MultiplyByFactor(factor, 100);
    static_cast<void>(sum);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

/// Whether a multiply-add takes the same time with a subnormal factor: AMD's processors need no
/// more, Intel's about 150 cycles.
bool SubnormalFactorsAreFast() {
  return SecondsWithFactor(0x1p-129F) < 4 * SecondsWithFactor(1.0F);
}

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = TableOf<kLeaves>("avx2");
  static constexpr KernelTable kTableByFloat16 = TableOf<kLeavesByFloat16>("avx2");
  static const bool kFast = SubnormalFactorsAreFast();
  return kFast ? kTable : kTableByFloat16;
}

}  // namespace outrider::cpu::avx2
