#include "outrider/kv/memory_page_store.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

int32_t PlacesIn(int64_t bytes, int64_t page_bytes) {
  OUTRIDER_CHECK(page_bytes > 0);
  return static_cast<int32_t>(std::clamp<int64_t>(bytes / page_bytes, 0, INT32_MAX));
}

MemoryPageStore::MemoryPageStore(int32_t num_places, int64_t page_bytes)
    : num_places_(num_places), page_bytes_(page_bytes) {
  OUTRIDER_CHECK(num_places > 0 && page_bytes > 0);
  memory_ = Buffer(static_cast<size_t>(num_places * page_bytes));
}

std::span<std::byte> MemoryPageStore::At(int32_t place) {
  OUTRIDER_CHECK(place >= 0 && place < num_places_);
  return {memory_.data() + place * page_bytes_, static_cast<size_t>(page_bytes_)};
}

void MemoryPageStore::Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) {
  fill(At(place));
}

void MemoryPageStore::Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) {
  take(At(place));
}

void MemoryPageStore::Clear() {
  memory_ = {};  // before the new memory is asked for
  try {
    memory_ = Buffer(static_cast<size_t>(num_places_ * page_bytes_));
  } catch (const Error& error) {
    throw PageStoreError(error.what());
  }
}

}  // namespace outrider
