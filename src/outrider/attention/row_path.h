// Which kind of attention runs the rows of a layer. That is a matter apart from how the cache keeps
// entries: latent entries are read in three ways.
#pragma once

#include <cstdint>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/kv/cache_form.h"

namespace outrider {

enum class RowPath : uint8_t {
  kAbsorbed,  // over latent entries, which are key and value of all heads
  kExpanded,  // over keys and values of every head, made from latent entries
  kListed,    // over a list of entries that is the row's own, key and value of all heads
  kPerHead,   // over entries that hold every head's key and value
};

/// The paths of a layer's rows, by their role. All layers of a network have the same.
struct RowPaths {
  RowPath generated = RowPath::kAbsorbed;
  RowPath prompt = RowPath::kExpanded;

  /// Paths of latent attention without an indexer, over a cache of this form.
  RowPaths(KvCacheForm form) {  // NOLINT(google-explicit-constructor)
    if (form == KvCacheForm::kHeads) generated = prompt = RowPath::kPerHead;
  }

  /// One for all rows.
  explicit RowPaths(RowPath path) : generated(path), prompt(path) {}

  /// Whether a row's path does not depend on its role.
  bool AreOne() const { return generated == prompt; }
  bool operator==(const RowPaths&) const = default;
};

/// Paths in a layer whose attention keeps entries; `form`: of latent attention without an indexer.
RowPaths RowPathsOf(const LayerSpec& layer, KvCacheForm form);

/// "absorbed", "expanded", "listed", "per head".
const char* RowPathName(RowPath path);

}  // namespace outrider
