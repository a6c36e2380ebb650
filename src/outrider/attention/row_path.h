// Which kind of attention runs the rows of a layer. That is a matter apart from how the cache keeps
// entries: latent entries are read in three ways.
#pragma once

#include <cstdint>

#include "outrider/checkpoint/model_config.h"
#include "outrider/kv/cache_form.h"

namespace outrider {

enum class RowPath : uint8_t {
  kAbsorbed,  // over latent entries, which are key and value of all heads
  kExpanded,  // over keys and values of every head, made from latent entries
  kListed,    // over a list of entries that is the row's own, key and value of all heads
  kPerHead,   // over entries that hold every head's key and value
};

/// The paths that rows take in the layers of a network. Each layer takes its own: by a row's role
/// kAbsorbed or kExpanded, or one of the others for all rows.
class RowPaths {
 public:
  /// None.
  RowPaths() = default;
  /// Of latent attention without an indexer, over a cache of this form: kAbsorbed for generated and
  /// kExpanded for prompt tokens, or kPerHead.
  RowPaths(KvCacheForm form)  // NOLINT(google-explicit-constructor)
      : bits_(form == KvCacheForm::kHeads ? Bit(RowPath::kPerHead)
                                          : Bit(RowPath::kAbsorbed) | Bit(RowPath::kExpanded)) {}
  /// One for all rows: kListed or kPerHead.
  explicit RowPaths(RowPath path) : bits_(Bit(path)) {}

  RowPaths operator|(RowPaths other) const {
    other.bits_ |= bits_;
    return other;
  }

  bool Has(RowPath path) const { return (bits_ & Bit(path)) != 0; }
  /// Whether a row's path depends on its role in some layer.
  bool ByRole() const { return Has(RowPath::kAbsorbed); }
  /// Whether all rows take one path in some layer.
  bool ForAll() const { return Has(RowPath::kListed) || Has(RowPath::kPerHead); }
  /// Of the entries of latent attention without an indexer: all such layers of a network have one.
  /// Where these are not the paths of any, kHeads where other layers' entries hold every head.
  KvCacheForm latent_form() const {
    return Has(RowPath::kPerHead) && !ByRole() ? KvCacheForm::kHeads : KvCacheForm::kLatent;
  }

  bool operator==(const RowPaths&) const = default;

 private:
  static uint8_t Bit(RowPath path) {
    return static_cast<uint8_t>(1U << static_cast<unsigned>(path));
  }

  uint8_t bits_ = 0;
};

/// Paths in a layer whose attention keeps entries; `form`: of latent attention without an indexer.
RowPaths RowPathsOf(const LayerSpec& layer, KvCacheForm form);

/// Paths in all layers of a network that keep entries, those of its modules included.
RowPaths RowPathsOf(const ModelConfig& config, KvCacheForm form);

/// "absorbed", "expanded", "listed", "per head".
const char* RowPathName(RowPath path);

}  // namespace outrider
