// DeepSeek-V4's attention: over the rows of the last tokens and over entries that stand for several
// tokens each, all of them or those that an indexer chooses.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// Pools entries of width D from tokens; C = D channels, or 2 D where windows overlap.
struct CompressorWeights {
  Weight values;                // wkv [C, hidden]
  Weight gates;                 // wgate [C, hidden]
  const float* bias = nullptr;  // ape [ratio, C], added to the gates
  const float* norm = nullptr;  // [D]
};

struct IndexerWeights {
  CompressorWeights compressor;
  Weight queries;  // wq_b [heads * D, q_lora]
  Weight weights;  // weights_proj [heads, hidden]
};

struct CompressedWeights {
  Weight q_a;                      // [q_lora, hidden]
  const float* q_norm = nullptr;   // [q_lora]
  Weight q_b;                      // [heads * D, q_lora]
  Weight kv;                       // [D, hidden]
  const float* kv_norm = nullptr;  // [D]
  const float* sinks = nullptr;    // [heads]
  Weight o_a;                      // [groups * rank, heads / groups * D]
  Weight o_b;                      // [hidden, groups * rank]
  CompressorWeights compressor;    // with a ratio
  IndexerWeights indexer;          // with index_heads
};

/// What a layer's attention gets of a step.
struct CompressedStep {
  const StepInputs& inputs;
  const Rotary& rotary;                // of the rows
  const Rotary& back;                  // its inverse
  std::span<const float> frequencies;  // of both, [R / 2]
  float magnitude = 1;                 // of both
  float norm_eps = 0;
  std::span<const LayerCache> caches;  // of the layer, in the order of FirstCacheLayer
  bool in_blocks = false;              // see CompressedAttentionArgs
};

/// Writes the rows of the window that the rows x [rows, hidden] of the step leave, x as for
/// CompressedForward.
void WriteWindowRows(const Context& context, const CompressedSpec& spec,
                     const CompressedWeights& weights, const CompressedStep& step, Tensor x);

/// out = attention(x) for the rows of the step. Writes what the rows leave in the caches first and
/// reads everything back from them. All rows take one path, whatever their role. x [rows, hidden]
/// is the normalised input, out [rows, hidden].
void CompressedForward(const Context& context, const CompressedSpec& spec,
                       const CompressedWeights& weights, const CompressedStep& step, Tensor x,
                       Tensor out);

}  // namespace outrider
