#include "outrider/kv/memory_page_store.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

int32_t PlacesIn(int64_t bytes, int64_t page_bytes) {
  OUTRIDER_CHECK(page_bytes > 0);
  return static_cast<int32_t>(std::clamp<int64_t>(bytes / page_bytes, 0, INT32_MAX));
}

MemoryPageStore::MemoryPageStore(int32_t num_places, int64_t page_bytes)
    : MemoryPageStore(
          num_places, page_bytes, [](size_t bytes) { return Buffer(bytes); }, INT64_MAX) {
  TakePiece(0);
}

MemoryPageStore::MemoryPageStore(int32_t num_places, int64_t page_bytes, Allocate allocate,
                                 int64_t piece_bytes)
    : num_places_(num_places), page_bytes_(page_bytes), allocate_(std::move(allocate)) {
  OUTRIDER_CHECK(num_places > 0 && page_bytes > 0 && piece_bytes > 0);
  places_of_piece_ = std::clamp(PlacesIn(piece_bytes, page_bytes), 1, num_places);
  pieces_.resize(static_cast<size_t>((num_places - 1) / places_of_piece_) + 1);
}

void MemoryPageStore::TakePiece(size_t piece) {
  const int32_t before = static_cast<int32_t>(piece) * places_of_piece_;
  const int64_t places = std::min(places_of_piece_, num_places_ - before);
  pieces_[piece] = allocate_(static_cast<size_t>(places * page_bytes_));
}

std::span<std::byte> MemoryPageStore::At(int32_t place) {
  OUTRIDER_CHECK(place >= 0 && place < num_places_);
  Buffer& piece = pieces_[static_cast<size_t>(place / places_of_piece_)];
  OUTRIDER_CHECK(piece.data() != nullptr);
  return {piece.data() + place % places_of_piece_ * page_bytes_, static_cast<size_t>(page_bytes_)};
}

void MemoryPageStore::Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) {
  OUTRIDER_CHECK(place >= 0 && place < num_places_);
  const auto piece = static_cast<size_t>(place / places_of_piece_);
  if (pieces_[piece].data() == nullptr) {
    try {
      TakePiece(piece);
    } catch (const Error& error) {
      throw PageStoreError(error.what());
    }
  }
  fill(At(place));
}

void MemoryPageStore::Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) {
  take(At(place));
}

void MemoryPageStore::Clear() {
  for (Buffer& piece : pieces_) piece = {};
}

}  // namespace outrider
