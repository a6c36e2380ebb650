// The expanded (MHA) form of MLA: keys and values per head are made from the latent cache, in
// rounds of blocks that bound the memory for them (DeepSeek-V2, arXiv:2405.04434 §2.1.1).
#pragma once

#include <span>

#include "outrider/attention/mla_weights.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/compute.h"

namespace outrider {

/// Runs `prompts` and `left_over` over their whole sequences. q [rows, heads * (P + R)], rotated,
/// and out [rows, heads * V] hold all rows of the step; rows of other requests are not touched.
///
/// A prompt row runs one softmax over all its keys in blocks at absolute positions, so its bits do
/// not depend on how the prompt was cut. A left-over row runs one over the cached context and one
/// over the step's new tokens, merged by log-sum-exp.
void ExpandedForm(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                  std::span<const RequestRows> prompts, std::span<const RequestRows> left_over,
                  LayerCache cache, MatrixView<const float> q, MatrixView<float> out);

}  // namespace outrider
