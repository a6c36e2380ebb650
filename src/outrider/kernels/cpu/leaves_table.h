// The CPU backend as a kernel table: its drivers over the leaves of one instruction set.
#pragma once

#include <string_view>

#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/cpu/matmul.h"
#include "outrider/kernels/cpu/row_kernels.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

/// The driver `kDriver` with `kLeaves`, as an entry of a table.
template <const LeafKernels& kLeaves, auto kDriver>
struct Entry;
template <const LeafKernels& kLeaves, typename... Args,
          void (*kDriver)(const LeafKernels&, Args...)>
struct Entry<kLeaves, kDriver> {
  static void Run(Args... args) { kDriver(kLeaves, args...); }
};

template <const LeafKernels& kLeaves>
constexpr KernelTable TableOf(std::string_view name) {
  return {
      .name = name,
      .max_fp8_weights_as_bf16 = kLeaves.max_fp8_weights_as_bf16,
      .matmul = Entry<kLeaves, MatMul>::Run,
      .matmul_arg_max = Entry<kLeaves, MatMulArgMax>::Run,
      .rms_norm = Entry<kLeaves, RmsNorm>::Run,
      .silu_mul = Entry<kLeaves, SiluMul>::Run,
      .gate_heads = Entry<kLeaves, GateHeads>::Run,
      .rotate = Entry<kLeaves, Rotate>::Run,
      .write_latent = Entry<kLeaves, WriteLatent>::Run,
      .gather_latent = Entry<kLeaves, GatherLatent>::Run,
      .write_entries = Entry<kLeaves, WriteEntries>::Run,
      .absorbed_attention = Entry<kLeaves, AbsorbedAttention>::Run,
      .per_head_attention = Entry<kLeaves, PerHeadAttention>::Run,
      .listed_attention = Entry<kLeaves, ListedAttention>::Run,
      .expanded_attention = Entry<kLeaves, ExpandedAttention>::Run,
      .combine_experts = Entry<kLeaves, CombineExperts>::Run,
      .add_weighted = kLeaves.add_weighted,
  };
}

}  // namespace outrider::cpu
