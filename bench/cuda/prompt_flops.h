// The arithmetic that prompts need in latent attention over chosen entries and in DeepSeek-V4, for
// benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "outrider/checkpoint/model_config.h"

namespace outrider::cuda {

/// Multiply-adds of a row in a layer's MLP.
inline int64_t MlpOfRow(const LayerSpec& layer, int64_t hidden) {
  const MoeSpec* const moe = layer.moe();
  if (moe == nullptr) return 3 * hidden * layer.dense()->width;
  return hidden * (moe->router.experts + 3 * (moe->router.top_k * moe->width + moe->shared_width));
}

/// Multiply-adds of a row in a layer's products, the absorbed form's among them.
inline double ProductsOfRow(const LayerSpec& layer, int64_t hidden) {
  const auto& a = std::get<MlaSpec>(layer.attention);
  int64_t sum = hidden * (a.q_lora + a.latent + a.rope) + a.q_lora * a.heads * a.query_width() +
                a.heads * (a.nope + a.value) * a.latent + a.heads * a.value * hidden;
  if (a.indexer) {
    sum +=
        a.q_lora * a.indexer->heads * a.indexer->dim + hidden * (a.indexer->dim + a.indexer->heads);
  }
  return static_cast<double>(sum + MlpOfRow(layer, hidden));
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

/// Multiply-adds of a row in the products of a layer of DeepSeek-V4, those of its streams among
/// them.
inline double CompressedProductsOfRow(const LayerSpec& layer, int64_t hidden) {
  const auto& a = std::get<CompressedSpec>(layer.attention);
  const int64_t channels = a.overlaps ? 2 : 1;  // times the width of an entry
  const int64_t streams = layer.residual.streams;
  int64_t sum = hidden * (a.q_lora + a.head_dim) + a.q_lora * a.heads * a.head_dim +
                a.heads * a.head_dim * a.output_rank + a.output_groups * a.output_rank * hidden;
  if (a.ratio > 0) sum += 2 * channels * a.head_dim * hidden;
  if (a.index_heads > 0) {
    sum += (2 * channels * a.index_dim + a.index_heads) * hidden +
           a.q_lora * a.index_heads * a.index_dim;
  }
  sum += 2 * (2 + streams) * streams * streams * hidden;  // before the attention and the MLP
  return static_cast<double>(sum + MlpOfRow(layer, hidden));
}

/// Floating-point operations of a prompt's `length` rows in all layers of DeepSeek-V4: products,
/// index scores of all entries that a row sees where they are more than it may choose, attention to
/// its window and entries. Without embeddings and head.
inline double CompressedPromptFlops(const ModelConfig& config, int64_t length) {
  double sum = 0;
  for (const LayerSpec& layer : config.layers) {
    const auto& a = std::get<CompressedSpec>(layer.attention);
    int64_t keys = 0;
    int64_t scored = 0;
    for (int64_t row = 1; row <= length; ++row) {
      const int64_t entries = a.ratio > 0 ? row / a.ratio : 0;
      const bool chooses = a.index_heads > 0 && entries > a.index_top_k;
      keys += std::min(row, a.window) + (chooses ? a.index_top_k : entries);
      if (chooses) scored += entries;
    }
    sum += static_cast<double>(length) * CompressedProductsOfRow(layer, config.hidden_size) +
           static_cast<double>(scored * a.index_heads * a.index_dim) +
           static_cast<double>(keys * 2 * a.heads * a.head_dim);
  }
  return 2 * sum;
}

}  // namespace outrider::cuda
