// MLA over a cache of per-head keys and values: W_UK and W_UV are applied once per token, when its
// entry is written, and rows of every role run one attention over the entries.
#pragma once

#include "outrider/attention/attention_plan.h"
#include "outrider/attention/mla_weights.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/compute.h"

namespace outrider {

/// Writes the entries of the layout's rows: kv [rows, L + R] is the latent projection, not yet
/// normalised nor rotated; its latents are normalised in place.
void WritePerHeadEntries(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                         const BatchLayout& layout, const RotaryRows& rotary, LayerCache cache,
                         MatrixView<float> kv);

/// Runs all rows of the plan. q [rows, heads * (P + R)], rotated; out [rows, heads * V].
void PerHeadForm(const Compute& compute, const MlaShape& shape, const AttentionPlan& plan,
                 LayerCache cache, MatrixView<const float> q, MatrixView<float> out);

}  // namespace outrider
