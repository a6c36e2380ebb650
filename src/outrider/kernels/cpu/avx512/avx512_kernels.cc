#include "outrider/kernels/cpu/avx512/avx512_kernels.h"

#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/matmul.h"
#include "outrider/kernels/cpu/row_kernels.h"

namespace outrider::cpu::avx512 {

namespace {

// What is left to AVX2 takes little of a step; attend_keys serves prompts.
constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
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
      .name = "avx512",
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

}  // namespace outrider::cpu::avx512
