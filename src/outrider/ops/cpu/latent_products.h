// Keys and values of every head from latents, in one task list.
#pragma once

#include <cstdint>

#include "outrider/ops/cpu/compute.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "outrider/ops/ops.h"

namespace outrider::cpu {

/// Where expanded keys and values lie in a row: head h's key (nope part, P elements) at
/// h * key_step, its value (V elements) at value + h * value_step.
struct ExpandedColumns {
  int64_t key_step = 0;
  int64_t value = 0;
  int64_t value_step = 0;
};

/// Writes W_UK and W_UV times the latents [n, L] of n tokens to `out` [n, any].
void ExpandLatents(const Compute& compute, const MlaShape& shape, const PackedKvUp& weights,
                   MatrixView<const float> latents, const ExpandedColumns& columns,
                   MatrixView<float> out);

}  // namespace outrider::cpu
