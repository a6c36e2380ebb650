// Attention on the CPU: how the work of a call is cut into tasks, and the memory around the leaves.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

void AbsorbedAttention(const LeafKernels& leaves, ThreadPool& pool,
                       const AbsorbedAttentionArgs& args);
void PerHeadAttention(const LeafKernels& leaves, ThreadPool& pool,
                      const PerHeadAttentionArgs& args);
void ListedAttention(const LeafKernels& leaves, ThreadPool& pool, const ListedAttentionArgs& args);
void ExpandedAttention(const LeafKernels& leaves, ThreadPool& pool,
                       const ExpandedAttentionArgs& args);

}  // namespace outrider::cpu
