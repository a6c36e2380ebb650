// Matrix products on the CPU: one task list for all jobs of a call, over column panels and row
// blocks, never over k.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

void MatMul(const LeafKernels& leaves, ThreadPool& pool, std::span<const MatMulJob> jobs,
            DType operand_dtype);

void MatMulArgMax(const LeafKernels& leaves, ThreadPool& pool, const ArgMaxJob& job,
                  DType operand_dtype);

}  // namespace outrider::cpu
