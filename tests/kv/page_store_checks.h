// What every PageStore must do, and a device for tests whose pages hold numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "outrider/kv/host_cache.h"
#include "outrider/kv/page_store.h"

namespace outrider {

inline void WriteByte(PageStore& store, int32_t place, uint8_t value) {
  store.Write(place, [&](std::span<std::byte> to) {
    ASSERT_EQ(std::ssize(to), store.page_bytes());
    // Bytes differ by position, too.
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte>(value + i);
  });
}

/// Whether a place holds what WriteByte wrote.
inline bool HoldsByte(PageStore& store, int32_t place, uint8_t value) {
  bool equal = true;
  store.Read(place, [&](std::span<const std::byte> from) {
    equal = std::ssize(from) == store.page_bytes();
    for (size_t i = 0; i < from.size(); ++i) {
      equal = equal && from[i] == static_cast<std::byte>(value + i);
    }
  });
  return equal;
}

/// A store of at least 3 places.
inline void ExpectStores(PageStore& store) {
  WriteByte(store, 2, 7);
  WriteByte(store, 0, 9);
  WriteByte(store, 1, 200);
  EXPECT_TRUE(HoldsByte(store, 2, 7));
  EXPECT_TRUE(HoldsByte(store, 0, 9));
  EXPECT_TRUE(HoldsByte(store, 1, 200));
  WriteByte(store, 2, 8);
  EXPECT_TRUE(HoldsByte(store, 2, 8));
  EXPECT_TRUE(HoldsByte(store, 0, 9));
  store.Clear();
  WriteByte(store, 1, 3);
  EXPECT_TRUE(HoldsByte(store, 1, 3));
}

/// Pages of one number each.
class NumberPages : public PageAccess {
 public:
  void ReadPage(int32_t page, std::span<std::byte> to) override {
    ++reads;
    std::memcpy(to.data(), &pages[page], sizeof(int64_t));
  }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    std::memcpy(&pages[page], from.data(), sizeof(int64_t));
  }

  std::map<int32_t, int64_t> pages;
  int reads = 0;
};

}  // namespace outrider
