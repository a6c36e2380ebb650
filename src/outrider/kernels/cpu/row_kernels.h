// Kernels on single rows, the cache and the sum of experts: fan-out over rows around the
// leaves.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

void RmsNorm(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> x,
             const float* weight, float eps, MatrixView<float> y);
void SiluMul(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> x, float limit,
             MatrixView<float> y);
void GateHeads(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> gates,
               MatrixView<float> x);
void Rotate(const LeafKernels& leaves, ThreadPool& pool, MatrixView<float> x, int32_t groups,
            int32_t group_stride, int32_t offset, const RotaryRows& rotary);
void WriteLatent(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> kv,
                 const float* weight, float eps, const RotaryRows& rotary,
                 const int64_t* slot_mapping, LayerCache cache);
void GatherLatent(const LeafKernels& leaves, ThreadPool& pool, LayerCache cache,
                  const int32_t* block_table, int32_t first_position, MatrixView<float> latent,
                  MatrixView<float> rope);
void WriteEntries(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> entries,
                  const int64_t* slot_mapping, LayerCache cache);
void CombineExperts(const LeafKernels& leaves, ThreadPool& pool, MatrixView<const float> y,
                    const int32_t* rows, const float* weights, int32_t top_k,
                    MatrixView<float> out);

}  // namespace outrider::cpu
