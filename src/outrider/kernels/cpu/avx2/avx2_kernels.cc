#include "outrider/kernels/cpu/avx2/avx2_kernels.h"

#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/matmul.h"
#include "outrider/kernels/cpu/row_kernels.h"

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

/// The driver `kDriver` with these leaves, as an entry of the table.
template <auto kDriver>
struct Entry;
template <typename... Args, void (*kDriver)(const LeafKernels&, Args...)>
struct Entry<kDriver> {
  static void Run(Args... args) { kDriver(kLeaves, args...); }
};

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = {
      .name = "avx2",
      .matmul = Entry<MatMul>::Run,
      .rms_norm = Entry<RmsNorm>::Run,
      .silu_mul = Entry<SiluMul>::Run,
      .rotate = Entry<Rotate>::Run,
      .write_latent = Entry<WriteLatent>::Run,
      .gather_latent = Entry<GatherLatent>::Run,
      .write_entries = Entry<WriteEntries>::Run,
      .absorbed_attention = Entry<AbsorbedAttention>::Run,
      .per_head_attention = Entry<PerHeadAttention>::Run,
      .expanded_attention = Entry<ExpandedAttention>::Run,
      .combine_experts = Entry<CombineExperts>::Run,
  };
  return kTable;
}

}  // namespace outrider::cpu::avx2
