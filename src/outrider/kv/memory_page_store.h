// Pages in the host's memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/kv/page_store.h"

namespace outrider {

class MemoryPageStore : public PageStore {
 public:
  /// Takes memory of this number of bytes; throws Error when there is no more.
  using Allocate = std::function<Buffer(size_t)>;

  /// Memory is taken as places are written. Throws Error when the system refuses the address space.
  MemoryPageStore(int32_t num_places, int64_t page_bytes);
  /// Memory that costs something before it is touched, as page-locked memory does: it is taken in
  /// pieces of about `piece_bytes` when a place in them is written first.
  MemoryPageStore(int32_t num_places, int64_t page_bytes, Allocate allocate,
                  int64_t piece_bytes = int64_t{64} << 20);

  std::string name() const override { return "host memory"; }
  int32_t num_places() const override { return num_places_; }
  int64_t page_bytes() const override { return page_bytes_; }
  void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) override;
  void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) override;
  void Clear() override;

 private:
  std::span<std::byte> At(int32_t place);
  void TakePiece(size_t piece);

  int32_t num_places_;
  int64_t page_bytes_;
  Allocate allocate_;
  int32_t places_of_piece_;
  std::vector<Buffer> pieces_;  // of places_of_piece_ places, but for the last; empty: not taken
};

}  // namespace outrider
