#include "outrider/kv/memory_page_store.h"

#include <gtest/gtest.h>

#include "tests/kv/page_store_checks.h"

namespace outrider {
namespace {

TEST(MemoryPageStoreTest, HoldsWhatWasWrittenLast) {
  MemoryPageStore store(3, 100);
  EXPECT_EQ(store.num_places(), 3);
  EXPECT_EQ(store.page_bytes(), 100);
  ExpectStores(store);
}

TEST(MemoryPageStoreTest, ASystemThatHasNoSuchMemoryIsAnError) {
  EXPECT_THROW(MemoryPageStore(1 << 30, int64_t{1} << 30), Error);
}

TEST(PageStoreTest, CountsWholePlaces) {
  EXPECT_EQ(PlacesIn(99, 100), 0);
  EXPECT_EQ(PlacesIn(250, 100), 2);
  EXPECT_EQ(PlacesIn(int64_t{1} << 62, 8), INT32_MAX);
}

}  // namespace
}  // namespace outrider
