// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1) over a paged cache. Latent
// entries: the absorbed form for generated tokens, the expanded form for prompt tokens, both in one
// step. Per-head entries: one form for all.
#pragma once

#include "outrider/attention/attention_plan.h"
#include "outrider/attention/mla_weights.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/compute.h"

namespace outrider {

/// residual += o_proj(attention(x)) for the rows of `layout`, split as `plan`, made from this
/// layout, says; writes the rows' entries to `cache` first and reads all keys back from it, so a
/// key's bits do not depend on when it was computed. x [rows, hidden] is the normalised input,
/// residual [rows, hidden].
void MlaForward(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                const BatchLayout& layout, const AttentionPlan& plan, const RotaryRows& rotary,
                LayerCache cache, MatrixView<const float> x, MatrixView<float> residual);

/// Writes the cache entries of the rows of `layout` as MlaForward does, and nothing else: for rows
/// whose output nobody reads. x [rows, hidden] is the normalised input.
void WriteMlaEntries(const Compute& compute, const MlaShape& shape, const MlaWeights& weights,
                     const BatchLayout& layout, KvCacheForm form, const RotaryRows& rotary,
                     LayerCache cache, MatrixView<const float> x);

}  // namespace outrider
