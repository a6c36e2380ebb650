// The absorbed (MQA) form of MLA: W_UK goes into the query, all heads attend to the latent cache,
// W_UV is applied to what they found (DeepSeek-V2, arXiv:2405.04434 §2.1.2).
#pragma once

#include "outrider/attention/attention_plan.h"
#include "outrider/attention/mla_weights.h"
#include "outrider/kernels/compute.h"

namespace outrider {

/// Runs the plan's decode runs with the decode kernel of its backend. q [rows, heads * (P + R)],
/// rotated, and out [rows, heads * V] hold all rows of the step; other rows are not touched.
void AbsorbedForm(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                  const AttentionPlan& plan, LayerCache cache, MatrixView<const float> q,
                  MatrixView<float> out);

}  // namespace outrider
