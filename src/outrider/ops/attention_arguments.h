// Arguments of every kind of attention.
#pragma once

#include <cstdint>

#include "outrider/kv/layer_cache.h"
#include "outrider/ops/tensor.h"

namespace outrider {

/// What attention reads and writes of the rows of a step; their entries are in the cache already.
struct AttentionArgs {
  Tensor q;
  Tensor out;
  LayerCache cache;
  Tensor gates = {};  // PerHeadAttention: [rows, heads], or without columns
};

}  // namespace outrider
