// The prefix cache's second tier: pages that leave a device's pool are kept in a PageStore under
// their keys, and come back with equal bytes. What is kept is up to the store's room; the page that
// left the pool longest ago goes first, a page that left it again counts as new.
//
// A key names all that the entries of a page depend on (block_key.h), so a page is as good as
// computed wherever it is found. Pages stay here when they come back: they need no copy when they
// leave the next time.
//
// A store that fails is used no more: the tier is empty from then on, and the log says so once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "outrider/kv/block_pool.h"
#include "outrider/kv/page_store.h"

namespace outrider {

/// Copies pages between a device and the host.
class PageAccess {
 public:
  virtual ~PageAccess() = default;
  /// What the page holds after all steps that were launched.
  virtual void ReadPage(int32_t page, std::span<std::byte> to) = 0;
  /// For the steps that are launched from now on.
  virtual void WritePage(int32_t page, std::span<const std::byte> from) = 0;
};

/// Since start, but for the pages that are there now.
struct HostCacheCounts {
  int64_t page_bytes = 0;
  int64_t pages_held = 0;
  int64_t most_pages = 0;
  int64_t pages_saved = 0;     // copied from the device
  int64_t pages_restored = 0;  // copied back
  int64_t pages_dropped = 0;   // for want of room
  bool failed = false;         // the store did: nothing is kept any more
};

class HostCache {
 public:
  /// Copies with `access`, which must outlive it.
  HostCache(std::unique_ptr<PageStore> store, PageAccess& access);

  const PageStore& store() const { return *store_; }
  HostCacheCounts counts() const;

  bool Holds(const BlockKey& key) const { return places_.Holds(key); }

  /// Counts a page that is held as new.
  void Touch(const BlockKey& key);

  /// Keeps the page of the device, which holds what `key` names, unless it is held already.
  void Save(const BlockKey& key, int32_t page);

  /// Copies what is held under `key` into a page of the device. False: it is not held, or the store
  /// has failed.
  bool Restore(const BlockKey& key, int32_t page);

  /// Drops all pages, and gives their memory back.
  void Forget();

 private:
  /// What the store failed in; it is used no more.
  void Fail(const PageStoreError& error);

  std::unique_ptr<PageStore> store_;
  PageAccess& access_;
  BlockPool places_;  // of the store; between two calls none is in use
  HostCacheCounts counts_;
};

}  // namespace outrider
