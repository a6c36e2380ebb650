// What every backend checks of a call's arguments: the shapes that kernel_table.h promises.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider {

void CheckMatMul(std::span<const MatMulJob> jobs, DType operand_dtype);
void CheckRotary(const RotaryRows& rotary, int64_t rows);
void CheckWriteLatent(MatrixView<const float> kv, const RotaryRows& rotary,
                      const LayerCache& cache);
void CheckGatherLatent(const LayerCache& cache, MatrixView<float> latent, MatrixView<float> rope);
void CheckWriteEntries(MatrixView<const float> entries, const LayerCache& cache);
void CheckAbsorbed(const AbsorbedAttentionArgs& args);
void CheckPerHead(const PerHeadAttentionArgs& args);
void CheckListed(const ListedAttentionArgs& args);
void CheckExpanded(const ExpandedAttentionArgs& args);

}  // namespace outrider
