// An indexer, which chooses the entries that a row attends to (DeepSeek-V3.2, GLM-5, DeepSeek-V4),
// and latent attention to what it chose.
#pragma once

#include <cstdint>

#include "outrider/kv/layer_cache.h"
#include "outrider/ops/context.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/tensor.h"

namespace outrider {

/// What writes the index keys of a step's rows:
///   y = weight * ((x - mean(x)) / sqrt(variance(x) + eps)) + bias, its first numbers rotated.
struct IndexKeyArgs {
  Tensor keys;                  // x [rows, D], float32; it may change
  const float* norm = nullptr;  // weight [D]
  const float* bias = nullptr;  // [D]
  float norm_eps = 0;
  Rotary rotary;
  LayerCache cache;  // [D]
};

/// Entries that rows attend to: entries[r * stride + i] for i < counts[r], rising.
struct SelectedEntries {
  const int32_t* entries = nullptr;
  const int32_t* counts = nullptr;  // [rows]
  int64_t stride = 0;
};

/// An indexer's choice: of the entries j < (position + 1) / ratio the `top_k` with the largest
///   sum over heads h of max(q[r, h] · key_j, 0) * weights[r, h],
/// the lower j among equals; all of them if they are no more.
struct SelectEntriesArgs {
  int32_t heads = 0;
  int32_t ratio = 0;
  int32_t top_k = 0;
  Tensor q;         // [rows, heads * D], rotated
  Tensor weights;   // [rows, heads], float32
  LayerCache keys;  // [D]
};

/// Latent attention in the absorbed form over selected entries e, each [latent, rotated key]:
///   s_e = scale * q[r, h] · e,  out[r, h] = sum_e softmax(s)_e * latent_e.
struct SelectedAttentionArgs {
  int32_t heads = 0;
  float softmax_scale = 0;
  int32_t first_row = 0;                      // of the step: row 0 of q and out
  Tensor q;                                   // [some rows, heads * width of an entry]
  Tensor out;                                 // [the same rows, heads * L]
  LayerCache entries;                         // [L + R]
  const SelectedEntries* selected = nullptr;  // of all rows of the step
};

/// A facet of Ops (Ops::sparse).
class SparseOps {
 public:
  virtual ~SparseOps() = default;

  virtual void WriteIndexKeys(const Context& context, const StepInputs& inputs,
                              const IndexKeyArgs& args) const = 0;

  /// Results live in the arena.
  virtual SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                        const SelectEntriesArgs& args) const = 0;

  virtual void SelectedAttention(const Context& context, const StepInputs& inputs,
                                 const SelectedAttentionArgs& args) const = 0;
};

}  // namespace outrider
