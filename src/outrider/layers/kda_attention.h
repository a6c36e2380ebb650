// Kimi Delta Attention: linear attention over a running state (ops/delta.h).
#pragma once

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// A projection to every channel of every head: one matrix, or two of low rank.
struct KdaProjection {
  Weight down;  // [rank, hidden]; absent where it is one matrix
  Weight up;    // [heads * D, rank or hidden]
};

struct KdaWeights {
  Weight q;  // [heads * D, hidden]
  Weight k;
  Weight v;
  const float* q_taps = nullptr;  // [heads * D, W]
  const float* k_taps = nullptr;
  const float* v_taps = nullptr;
  KdaProjection decay;
  const float* decay_log = nullptr;   // A_log [heads]
  const float* decay_bias = nullptr;  // dt_bias [heads * D]
  Weight write;                       // b_proj [heads, hidden]
  KdaProjection gate;
  const float* norm = nullptr;  // [D]
  Weight o;                     // [hidden, heads * D]
};

/// What a layer gets of a step.
struct KdaStep {
  const StepInputs& inputs;
  StateCache state;
  int32_t first_head = 0;  // of the layer, among those of all layers
  float norm_eps = 0;
};

/// residual += attention(x) for all rows of the step, whatever their role. x [rows, hidden] is the
/// normalised input, residual [rows, hidden].
void KdaForward(const Context& context, const KdaSpec& spec, const KdaWeights& weights,
                const KdaStep& step, Tensor x, Tensor residual);

}  // namespace outrider
