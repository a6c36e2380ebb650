#include "outrider/kv/host_cache.h"

#include <utility>

#include "outrider/base/logging.h"

namespace outrider {

HostCache::HostCache(std::unique_ptr<PageStore> store, PageAccess& access)
    : store_(std::move(store)), access_(access), places_(store_->num_places()) {
  counts_.page_bytes = store_->page_bytes();
  counts_.most_pages = store_->num_places();
}

HostCacheCounts HostCache::counts() const { return counts_; }

void HostCache::Touch(const BlockKey& key) {
  if (const std::optional<int32_t> place = places_.Share(key)) places_.Release(*place);
}

void HostCache::Save(const BlockKey& key, int32_t page) {
  if (counts_.failed) return;
  if (Holds(key)) return Touch(key);
  const int32_t place = places_.Allocate().value();
  if (counts_.pages_held < counts_.most_pages) {
    ++counts_.pages_held;
  } else {
    ++counts_.pages_dropped;
  }
  try {
    store_->Write(place, [&](std::span<std::byte> to) { access_.ReadPage(page, to); });
    places_.Publish(place, key);
    ++counts_.pages_saved;
  } catch (const PageStoreError& error) {
    Fail(error);
  }
  places_.Release(place);
}

bool HostCache::Restore(const BlockKey& key, int32_t page) {
  const std::optional<int32_t> place = places_.Share(key);
  if (!place) return false;
  try {
    store_->Read(*place, [&](std::span<const std::byte> from) { access_.WritePage(page, from); });
    ++counts_.pages_restored;
  } catch (const PageStoreError& error) {
    Fail(error);
  }
  places_.Release(*place);
  return !counts_.failed;
}

void HostCache::Forget() {
  places_.ForgetPublished();
  counts_.pages_held = 0;
  if (counts_.failed) return;
  try {
    store_->Clear();
  } catch (const PageStoreError& error) {
    Fail(error);
  }
}

void HostCache::Fail(const PageStoreError& error) {
  counts_.failed = true;
  counts_.pages_held = 0;
  places_.ForgetPublished();
  spdlog::error(
      "{}: pages of the prefix cache are no longer kept outside of the device; what is not in its "
      "memory is computed again",
      error.what());
}

}  // namespace outrider
