#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::reference {

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = {
      .name = "reference",
      .matmul = MatMul,
      .matmul_arg_max = MatMulArgMax,
      .rms_norm = RmsNorm,
      .silu_mul = SiluMul,
      .gate_heads = GateHeads,
      .rotate = Rotate,
      .write_latent = WriteLatent,
      .gather_latent = GatherLatent,
      .write_entries = WriteEntries,
      .absorbed_attention = AbsorbedAttention,
      .per_head_attention = PerHeadAttention,
      .listed_attention = ListedAttention,
      .expanded_attention = ExpandedAttention,
      .combine_experts = CombineExperts,
      .add_weighted = AddWeighted,
  };
  return kTable;
}

}  // namespace outrider::reference
