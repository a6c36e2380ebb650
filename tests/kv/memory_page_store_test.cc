#include "outrider/kv/memory_page_store.h"

#include <gtest/gtest.h>

#include <vector>

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

// 5 places in pieces of 2: the last has one.
TEST(MemoryPageStoreTest, TakesPiecesWhenAPlaceInThemIsWritten) {
  std::vector<size_t> taken;
  MemoryPageStore store(
      5, 100,
      [&](size_t bytes) {
        taken.push_back(bytes);
        return Buffer(bytes);
      },
      250);
  EXPECT_TRUE(taken.empty());
  WriteByte(store, 3, 1);
  WriteByte(store, 2, 2);
  EXPECT_EQ(taken, (std::vector<size_t>{200}));
  WriteByte(store, 4, 3);
  EXPECT_EQ(taken, (std::vector<size_t>{200, 100}));
  ExpectStores(store);
  EXPECT_EQ(taken, (std::vector<size_t>{200, 100, 200, 200})) << "the last after Clear";
}

TEST(MemoryPageStoreTest, APieceThatThereIsNotIsTheStoresError) {
  MemoryPageStore store(2, 100, [](size_t) -> Buffer { throw InvalidArgument("no more"); });
  EXPECT_THROW(WriteByte(store, 1, 1), PageStoreError);
}

TEST(PageStoreTest, CountsWholePlaces) {
  EXPECT_EQ(PlacesIn(99, 100), 0);
  EXPECT_EQ(PlacesIn(250, 100), 2);
  EXPECT_EQ(PlacesIn(int64_t{1} << 62, 8), INT32_MAX);
}

}  // namespace
}  // namespace outrider
