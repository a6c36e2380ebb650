// What the forms of MLA attention hand to the kernels in the same way: requests as spans of rows,
// and keys and values expanded from latents.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/attention/mla_weights.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/compute.h"

namespace outrider {

/// The requests as kernels take them, with rows counted from first_row on; memory of `scratch`.
std::span<const AttentionSpan> KernelSpans(std::span<const RequestRows> requests, int32_t first_row,
                                           Scratch& scratch);

/// Where expanded keys and values lie in a row: head h's key (nope part, P elements) at
/// h * key_step, its value (V elements) at value + h * value_step.
struct ExpandedColumns {
  int64_t key_step = 0;
  int64_t value = 0;
  int64_t value_step = 0;
};

/// Writes W_UK and W_UV times the latents [n, L] of n tokens to `out` [n, any].
void ExpandLatents(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                   MatrixView<const float> latents, const ExpandedColumns& columns,
                   MatrixView<float> out);

}  // namespace outrider
