#include "outrider/kernels/cpu/avx2/avx2_kernels.h"

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/matmul.h"
#include "outrider/kernels/reference/reference_kernels.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr LeafKernels kLeaves = {
    .multiply_panels = MultiplyPanels,
    .round_to_bfloat16 = RoundToBFloat16Row,
};

void RunMatMul(ThreadPool& pool, std::span<const MatMulJob> jobs, DType operand_dtype) {
  MatMul(kLeaves, pool, jobs, operand_dtype);
}

}  // namespace

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = {
      .name = "avx2",
      .matmul = RunMatMul,
      .rms_norm = reference::RmsNorm,
      .silu_mul = reference::SiluMul,
      .rotate = reference::Rotate,
      .write_latent = reference::WriteLatent,
      .gather_latent = reference::GatherLatent,
      .absorbed_attention = reference::AbsorbedAttention,
      .expanded_attention = reference::ExpandedAttention,
      .combine_experts = reference::CombineExperts,
  };
  return kTable;
}

}  // namespace outrider::cpu::avx2
