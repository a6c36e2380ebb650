// Operations of Kimi Delta Attention (arXiv:2510.26692): linear attention whose state decays by
// channel before the delta rule adds to it. kv/running_state.h says what is kept between steps.
#pragma once

#include <cstdint>

#include "outrider/kv/state_cache.h"
#include "outrider/ops/context.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

/// The sizes of a layer's KDA.
struct DeltaShape {
  int32_t heads = 0;
  int32_t head_dim = 0;    // D
  int32_t conv = 0;        // W, rows that the convolution reads, its own included
  bool bounded = false;    // decay_bound holds
  float decay_bound = 0;   // below 0
  int32_t first_head = 0;  // of the layer, among those of all layers (RunningStateSpec)
};

/// What the rows of a step bring, and what they are combined with.
struct DeltaArgs {
  Tensor q;  // [rows, heads * D], before the convolution
  Tensor k;
  Tensor v;
  const float* q_taps = nullptr;  // [heads * D, W], the last for the row itself
  const float* k_taps = nullptr;
  const float* v_taps = nullptr;
  Tensor decay;                       // [rows, heads * D], before its bias; may be overwritten
  const float* decay_log = nullptr;   // A_log [heads]
  const float* decay_bias = nullptr;  // dt_bias [heads * D]
  Tensor write;  // [rows, heads]: how much of a value is written, before sigmoid
  StateCache state;
  Tensor out;  // [rows, heads * D]
};

/// Turns a layer's attention into what its output projection reads.
struct NormGateArgs {
  Tensor x;  // [rows, heads * D]; is overwritten
  int32_t heads = 0;
  const float* norm = nullptr;  // [D], one for all heads
  float norm_eps = 0;
  Tensor gates;  // [rows, heads * D]
  Tensor y;      // [rows, heads * D], may be x
};

/// A facet of Ops (Ops::delta).
class DeltaOps {
 public:
  virtual ~DeltaOps() = default;

  /// Runs the rows of every request in order: the short convolutions and silu; queries and keys of
  /// length 1, queries times D^-1/2; the decays g and the write strength b = sigmoid(write); then
  ///   S = diag(exp(g)) S,  u = b (v - S^T k),  S = S + k u^T,  out = S^T q,
  /// from the last multiple of kStateBlock tokens on. Leaves the state of all tokens that are no
  /// drafts, up to such a multiple, the checkpoints on the way, and the kept rows.
  virtual void DeltaAttention(const Context& context, const DeltaShape& shape,
                              const StepInputs& inputs, const DeltaArgs& args) const = 0;

  /// y = every head of x normalised, times `norm`, times the sigmoid of its gates.
  virtual void NormGate(const Context& context, const NormGateArgs& args) const = 0;

  /// Every head of x [rows, heads * n] is multiplied by the sigmoid of its gate [rows, heads].
  virtual void GateHeads(const Context& context, Tensor gates, Tensor x) const = 0;
};

}  // namespace outrider
