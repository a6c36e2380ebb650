// The arithmetic that prompts need in latent attention over chosen entries, for benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "outrider/checkpoint/model_config.h"

namespace outrider::cuda {

/// Multiply-adds of a row in a layer's products, the absorbed form's among them.
inline double ProductsOfRow(const LayerSpec& layer, int64_t hidden) {
  const auto& a = std::get<MlaSpec>(layer.attention);
  int64_t sum = hidden * (a.q_lora + a.latent + a.rope) + a.q_lora * a.heads * a.query_width() +
                a.heads * (a.nope + a.value) * a.latent + a.heads * a.value * hidden;
  if (a.indexer) {
    sum +=
        a.q_lora * a.indexer->heads * a.indexer->dim + hidden * (a.indexer->dim + a.indexer->heads);
  }
  if (const MoeSpec* const moe = layer.moe()) {
    sum +=
        hidden * (moe->router.experts + 3 * (moe->router.top_k * moe->width + moe->shared_width));
  } else {
    sum += 3 * hidden * layer.dense()->width;
  }
  return static_cast<double>(sum);
}

/// Floating-point operations of a prompt's `length` rows in all layers, which are of latent
/// attention with an indexer: products, index scores of all that a row sees, attention to what it
/// chose. Without embeddings and head.
inline double SparsePromptFlops(const ModelConfig& config, int64_t length) {
  double sum = 0;
  for (const LayerSpec& layer : config.layers) {
    const auto& a = std::get<MlaSpec>(layer.attention);
    const IndexerSpec& indexer = *a.indexer;
    const auto rows = static_cast<double>(length);
    const auto top_k = static_cast<double>(std::min(indexer.top_k, length));
    const double seen = rows * (rows + 1) / 2;
    const double chosen = top_k * (top_k + 1) / 2 + (rows - top_k) * top_k;
    sum += rows * ProductsOfRow(layer, config.hidden_size);
    if (length > indexer.top_k) sum += seen * static_cast<double>(indexer.heads * indexer.dim);
    sum += chosen * static_cast<double>(a.heads * (2 * a.latent + a.rope));
  }
  return 2 * sum;
}

}  // namespace outrider::cuda
