// Pages in the host's memory.
#pragma once

#include <string>

#include "outrider/base/buffer.h"
#include "outrider/kv/page_store.h"

namespace outrider {

class MemoryPageStore : public PageStore {
 public:
  /// Memory is taken as places are written. Throws Error when the system refuses the address space.
  MemoryPageStore(int32_t num_places, int64_t page_bytes);

  std::string name() const override { return "host memory"; }
  int32_t num_places() const override { return num_places_; }
  int64_t page_bytes() const override { return page_bytes_; }
  void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) override;
  void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) override;
  void Clear() override;

 private:
  std::span<std::byte> At(int32_t place);

  int32_t num_places_;
  int64_t page_bytes_;
  Buffer memory_;
};

}  // namespace outrider
