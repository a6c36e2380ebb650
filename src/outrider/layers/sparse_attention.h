// Latent attention over the tokens that an indexer chooses (DeepSeek-V3.2, GLM-5). A row reads the
// top_k tokens whose keys its indexer's queries score highest, all of them while there are no more.
// Every row takes the absorbed form, whatever its role: one path, whose lists rise by position.
#pragma once

#include "outrider/layers/mla_attention.h"

namespace outrider {

/// What a layer keeps in the cache.
struct SparseCaches {
  LayerCache entries;     // latent entries
  LayerCache index_keys;  // [D]
};

/// As MlaForward, over the chosen tokens. Writes entries and keys of the rows first.
void SparseMlaForward(const Context& context, const MlaSpec& spec, const MlaWeights& weights,
                      const StepInputs& inputs, const Rotary& rotary, const SparseCaches& caches,
                      Tensor x, Tensor residual);

/// As WriteMlaEntries, of entries and keys.
void WriteSparseMlaEntries(const Context& context, const MlaSpec& spec, const MlaWeights& weights,
                           const StepInputs& inputs, const Rotary& rotary,
                           const SparseCaches& caches, Tensor x);

}  // namespace outrider
