#include "outrider/kv/host_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "outrider/kv/cache_coordinator.h"
#include "outrider/kv/memory_page_store.h"
#include "tests/kv/page_store_checks.h"

namespace outrider {
namespace {

BlockKey NumberKey(int32_t number) {
  BlockKey key{};
  key[0] = static_cast<uint8_t>(number);
  return key;
}

/// A store that fails as it is told.
class FailingStore : public MemoryPageStore {
 public:
  using MemoryPageStore::MemoryPageStore;
  void Write(int32_t place, FunctionRef<void(std::span<std::byte>)> fill) override {
    MemoryPageStore::Write(place, fill);
    if (fail_writes) throw PageStoreError("no space");
  }
  void Read(int32_t place, FunctionRef<void(std::span<const std::byte>)> take) override {
    if (fail_reads) throw PageStoreError("other bytes");
    MemoryPageStore::Read(place, take);
  }
  bool fail_writes = false;
  bool fail_reads = false;
};

struct Host {
  explicit Host(int32_t places) {
    auto own = std::make_unique<FailingStore>(places, sizeof(int64_t));
    store = own.get();
    cache.emplace(std::move(own), device);
  }
  void Save(int32_t number) {
    device.pages[1] = number * 1000;
    cache->Save(NumberKey(number), 1);
  }
  /// What comes back under the key; nothing if it is not held.
  std::optional<int64_t> Restore(int32_t number) {
    device.pages[2] = -1;
    if (!cache->Restore(NumberKey(number), 2)) return std::nullopt;
    return device.pages[2];
  }

  NumberPages device;
  FailingStore* store = nullptr;
  std::optional<HostCache> cache;
};

TEST(HostCacheTest, APageComesBackWithItsBytesAndStays) {
  Host host(3);
  host.Save(1);
  host.Save(2);
  EXPECT_TRUE(host.cache->Holds(NumberKey(1)));
  EXPECT_FALSE(host.cache->Holds(NumberKey(3)));
  EXPECT_EQ(host.Restore(1), 1000);
  EXPECT_EQ(host.Restore(1), 1000);
  EXPECT_EQ(host.Restore(2), 2000);
  EXPECT_FALSE(host.Restore(3).has_value());
  const HostCacheCounts counts = host.cache->counts();
  EXPECT_EQ(counts.pages_saved, 2);
  EXPECT_EQ(counts.pages_restored, 3);
  EXPECT_EQ(counts.pages_held, 2);
  EXPECT_EQ(counts.most_pages, 3);
  EXPECT_EQ(counts.pages_dropped, 0);
  EXPECT_EQ(counts.page_bytes, 8);
}

TEST(HostCacheTest, WithoutRoomThePageThatLeftLongestAgoGoes) {
  Host host(3);
  for (const int32_t number : {1, 2, 3}) host.Save(number);
  host.Save(1);  // it left the pool again
  host.cache->Touch(NumberKey(2));
  host.Save(4);
  EXPECT_FALSE(host.cache->Holds(NumberKey(3)));
  host.Save(5);
  EXPECT_FALSE(host.cache->Holds(NumberKey(1)));
  EXPECT_EQ(host.Restore(2), 2000);
  EXPECT_EQ(host.Restore(4), 4000);
  EXPECT_EQ(host.Restore(5), 5000);
  EXPECT_EQ(host.cache->counts().pages_held, 3);
  EXPECT_EQ(host.cache->counts().pages_dropped, 2);
}

TEST(HostCacheTest, APageThatIsHeldIsNotCopiedAgain) {
  Host host(3);
  host.Save(1);
  host.Save(1);
  EXPECT_EQ(host.device.reads, 1);
  EXPECT_EQ(host.cache->counts().pages_saved, 1);
}

TEST(HostCacheTest, WhatIsForgottenIsGone) {
  Host host(2);
  host.Save(1);
  host.Save(2);
  host.cache->Forget();
  EXPECT_FALSE(host.Restore(1).has_value());
  EXPECT_EQ(host.cache->counts().pages_held, 0);
  host.Save(3);
  EXPECT_EQ(host.Restore(3), 3000);
  EXPECT_EQ(host.cache->counts().pages_held, 1);
  EXPECT_EQ(host.cache->counts().pages_dropped, 0);
}

TEST(HostCacheTest, AStoreThatFailsIsUsedNoMore) {
  for (const bool writes : {true, false}) {
    Host host(3);
    host.Save(1);
    host.store->fail_writes = writes;
    host.store->fail_reads = !writes;
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    if (writes) {
      host.Save(2);
    } else {
      EXPECT_FALSE(host.Restore(1).has_value());
      EXPECT_EQ(host.device.pages[2], -1);
    }
    host.store->fail_writes = host.store->fail_reads = false;
    host.Save(3);
    host.cache->Forget();
    host.Save(4);
    const std::string log =
        testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    for (const int32_t number : {1, 2, 3, 4}) EXPECT_FALSE(host.Restore(number).has_value());
    EXPECT_TRUE(host.cache->counts().failed);
    EXPECT_EQ(host.cache->counts().pages_held, 0);
    const std::string line = "no longer kept";
    ASSERT_NE(log.find(line), std::string::npos) << log;
    EXPECT_EQ(log.find(line, log.find(line) + 1), std::string::npos) << log;  // once
  }
}

/// A pool of pages of 4 tokens before a host cache.
struct TwoTiers {
  TwoTiers(int32_t pages, int32_t places) : host(places), coordinator(FullHistoryCache(pages, 4)) {
    coordinator.SetHostCache(&*host.cache);
  }

  static std::vector<BlockKey> Keys(int32_t first, int32_t count) {
    std::vector<BlockKey> keys;
    for (int32_t i = 0; i < count; ++i) keys.push_back(NumberKey(first + i));
    return keys;
  }

  /// A request with these blocks runs and ends; pages hold the numbers of their keys.
  void Run(const std::vector<BlockKey>& keys) {
    CacheTables tables = coordinator.MakeTables(64);
    const auto tokens = static_cast<int32_t>(keys.size()) * 4;
    ASSERT_TRUE(coordinator.Reserve(tables, 0, tokens, tokens));
    for (size_t i = 0; i < keys.size(); ++i) host.device.pages[tables.blocks(0)[i]] = keys[i][0];
    coordinator.Publish(tables, keys, tokens);
    coordinator.Clear(tables);
  }

  Host host;
  CacheCoordinator coordinator;
};

TEST(HostCacheTest, APrefixMayLieInBothTiers) {
  TwoTiers tiers(6, 8);
  const std::vector<BlockKey> first = TwoTiers::Keys(10, 4);
  tiers.Run(first);
  tiers.Run(TwoTiers::Keys(20, 4));  // takes two pages of the first, its tail
  EXPECT_EQ(tiers.host.cache->counts().pages_saved, 2);
  EXPECT_EQ(tiers.coordinator.FindPrefix(first, 64), 16);
  CacheTables tables = tiers.coordinator.MakeTables(64);
  const auto shared = tiers.coordinator.SharePrefix(tables, first, 64);
  EXPECT_EQ(shared.tokens, 16);
  EXPECT_EQ(shared.in_pool, 8);
  ASSERT_TRUE(tiers.coordinator.Reserve(tables, 16, 16, 16));
  ASSERT_TRUE(tiers.coordinator.Return(tables));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tiers.host.device.pages[tables.blocks(0)[i]], 10 + static_cast<int64_t>(i));
    EXPECT_TRUE(tiers.coordinator.pool().Holds(first[i]));
  }
  tiers.coordinator.Clear(tables);
  EXPECT_EQ(tiers.coordinator.pool().Usage(), 0);
}

TEST(HostCacheTest, WhatIsNotTakenIsNotHeld) {
  TwoTiers tiers(6, 8);
  const std::vector<BlockKey> first = TwoTiers::Keys(10, 4);
  tiers.Run(first);
  tiers.Run(TwoTiers::Keys(20, 4));
  CacheTables running = tiers.coordinator.MakeTables(64);
  ASSERT_TRUE(tiers.coordinator.Reserve(running, 0, 12, 12));
  CacheTables tables = tiers.coordinator.MakeTables(64);
  EXPECT_EQ(tiers.coordinator.SharePrefix(tables, first, 64).tokens, 16);
  EXPECT_FALSE(tiers.coordinator.Reserve(tables, 16, 16, 16));  // 4 pages and 3 are 7
  tiers.coordinator.Clear(tables);
  tiers.coordinator.Clear(running);
  EXPECT_EQ(tiers.coordinator.pool().Usage(), 0);
  EXPECT_EQ(tiers.host.cache->counts().pages_restored, 0);
}

TEST(HostCacheTest, APageThatDoesNotComeBackShortensThePrefix) {
  TwoTiers tiers(6, 8);
  const std::vector<BlockKey> first = TwoTiers::Keys(10, 4);
  tiers.Run(first);
  tiers.Run(TwoTiers::Keys(20, 4));
  tiers.host.store->fail_reads = true;
  CacheTables tables = tiers.coordinator.MakeTables(64);
  EXPECT_EQ(tiers.coordinator.SharePrefix(tables, first, 64).tokens, 16);
  ASSERT_TRUE(tiers.coordinator.Reserve(tables, 16, 16, 16));
  EXPECT_FALSE(tiers.coordinator.Return(tables));
  tiers.coordinator.Clear(tables);
  EXPECT_FALSE(tiers.coordinator.pool().Holds(first[2]));
  EXPECT_EQ(tiers.coordinator.FindPrefix(first, 64), 8);
  EXPECT_EQ(tiers.coordinator.pool().Usage(), 0);
}

TEST(HostCacheTest, ForgettingPrefixesForgetsThoseOfBothTiers) {
  TwoTiers tiers(6, 8);
  const std::vector<BlockKey> first = TwoTiers::Keys(10, 4);
  tiers.Run(first);
  tiers.Run(TwoTiers::Keys(20, 4));
  tiers.coordinator.ForgetPublished();
  EXPECT_EQ(tiers.coordinator.FindPrefix(first, 64), 0);
  EXPECT_FALSE(tiers.host.cache->Holds(first[2]));
}

}  // namespace
}  // namespace outrider
