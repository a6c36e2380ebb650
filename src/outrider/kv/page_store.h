// Where pages of the cache are kept outside of a device: places of one size, each of which holds
// the bytes of one page. What a place means is its user's matter (host_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "outrider/base/error.h"
#include "outrider/base/function_ref.h"

namespace outrider {

/// What a store failed in: its disk is full, or gives errors or other bytes.
class PageStoreError : public Error {
 public:
  explicit PageStoreError(const std::string& message) : Error(ErrorCode::kUnavailable, message) {}
};

class PageStore {
 public:
  virtual ~PageStore() = default;

  /// "host memory", "a file in DIR".
  virtual std::string name() const = 0;
  /// Places 0 .. num_places() - 1, of page_bytes() bytes each.
  virtual int32_t num_places() const = 0;
  virtual int64_t page_bytes() const = 0;

  /// `fill` writes all bytes of the place. Throws PageStoreError when the store fails, and what
  /// `fill` throws; what the place held is lost then.
  virtual void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) = 0;

  /// `take` reads what was written there last. Throws PageStoreError, and does not call it, when
  /// the store fails or gives other bytes; and what `take` throws.
  virtual void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) = 0;

  /// Gives the memory of all places back; what they held is lost. Throws PageStoreError when the
  /// store fails.
  virtual void Clear() = 0;
};

/// Places that `bytes` bytes have room for, at most INT32_MAX. page_bytes: at least 1.
int32_t PlacesIn(int64_t bytes, int64_t page_bytes);

}  // namespace outrider
