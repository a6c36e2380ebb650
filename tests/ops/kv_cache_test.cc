#include "outrider/ops/kv_cache.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "outrider/ops/cpu/cpu_ops.h"

namespace outrider {
namespace {

Device HostDevice() { return {cpu::GetCpuOps(Isa::kReference)}; }

/// A device with memory of its own, of which it counts the bytes in use.
class CountedMemory : public cpu::CpuOps {
 public:
  CountedMemory() : CpuOps(GetKernels(Isa::kReference)) {}
  Buffer Allocate(size_t bytes) const override {
    in_use += bytes;
    return {new std::byte[bytes]{}, bytes, [](std::byte* data, size_t size) {
              in_use -= size;
              delete[] data;
            }};
  }
  static inline size_t in_use = 0;
};

TEST(KvCacheTest, MemoryIsTheDevices) {
  const CountedMemory ops;
  {
    const NetworkCache network{.groups = {{.name = "full"}}, .layers = {{0, 24}}};
    KvCache cache({ops}, MakeCacheConfig(network, DType::kF32, 16, 5), network.layers, DType::kF32);
    EXPECT_EQ(CountedMemory::in_use, 5 * 16 * 24 * 4U);
    KvCache moved = std::move(cache);
    EXPECT_EQ(moved.layer(0).data[5 * 16 * 24 * 4 - 1], std::byte{0});
    const auto rows = ops.MakeRows(3, 8);
    const std::unique_ptr<Arena> arena = ops.MakeArena();
    arena->Take<float>(1);
    EXPECT_EQ(CountedMemory::in_use, 5 * 16 * 24 * 4U + 3 * 8 * 4 + arena->capacity());
  }
  EXPECT_EQ(CountedMemory::in_use, 0U);
}

TEST(KvCacheTest, APageHoldsABlockOfAllLayers) {
  const NetworkCache network{.groups = {{.name = "full"}},
                             .layers = std::vector<CacheLayerSpec>(3, {0, 24})};
  KvCache cache(HostDevice(), MakeCacheConfig(network, DType::kBF16, 16, 5), network.layers,
                DType::kBF16);
  EXPECT_EQ(cache.layer(2).data - cache.layer(1).data, 16 * 24 * 2);
  EXPECT_EQ(cache.layer(0).block_size, 16);
  EXPECT_EQ(cache.layer(0).width, 24);
  EXPECT_EQ(cache.layer(1).SlotOffset(17), 3 * 16 * 24 + 24);
  EXPECT_EQ(BytesPerToken(cache.config().groups), 3 * 24 * 2);
}

TEST(KvCacheTest, GroupsShareThePages) {
  const CacheConfig config{.groups = {{.name = "full", .tokens_per_block = 8},
                                      {.name = "window",
                                       .kind = CacheGroupKind::kSlidingWindow,
                                       .tokens_per_block = 8,
                                       .window = 20},
                                      {.name = "compressed", .tokens_per_block = 32}},
                           .num_pages = 5};
  KvCache cache(HostDevice(), config, {{0, 16}, {1, 16}, {2, 4, 4}, {1, 16}}, DType::kF32);
  // The window's two layers have the largest block: 2 * 8 * 16 floats.
  EXPECT_EQ(cache.config().PageBytes(), 2 * 8 * 16 * 4);
  for (int32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(cache.layer(layer).block_stride, 2 * 8 * 16);
  }
  EXPECT_EQ(cache.layer(1).data, cache.layer(0).data);
  EXPECT_EQ(cache.layer(3).data - cache.layer(1).data, 8 * 16 * 4);
  EXPECT_EQ(cache.layer(2).block_size, 8);
  EXPECT_EQ(cache.layer(2).group, 2);
  EXPECT_EQ(BytesPerToken(cache.config().groups), 16 * 4 + 2 * 16 * 4 + 4 * 4 / 4);
}

TEST(KvCacheTest, LayersOfAGroupMayHaveWidthsRatiosAndTypesOfTheirOwn) {
  const CacheConfig config{.groups = {{.name = "full", .tokens_per_block = 32}}, .num_pages = 3};
  const std::vector<CacheLayerSpec> layers = {
      {0, 5, 4}, {0, 7, 16}, {0, 3, 1, CacheUse::kState}, {0, 4}};
  KvCache cache(HostDevice(), config, layers, DType::kBF16);
  // For 16 tokens: 4 entries of 5, one of 7 in whole multiples of 4 bytes, 16 of 3 floats, 16 of 4.
  EXPECT_EQ(cache.config().groups[0].unit_tokens, 16);
  EXPECT_EQ(cache.config().groups[0].unit_bytes, 40 + 16 + 192 + 128);
  EXPECT_EQ(cache.layer(0).block_size, 8);
  EXPECT_EQ(cache.layer(1).block_size, 2);
  EXPECT_EQ(cache.layer(2).dtype, DType::kF32);
  EXPECT_EQ(cache.layer(3).dtype, DType::kBF16);
  EXPECT_EQ(cache.layer(1).data - cache.layer(0).data, 8 * 5 * 2);
  EXPECT_EQ(cache.layer(2).data - cache.layer(1).data, 28);  // 2 * 7 * 2
  EXPECT_EQ(cache.layer(3).data - cache.layer(2).data, 32 * 3 * 4);
  EXPECT_EQ(cache.layer(2).SlotOffset(32) * 4, cache.config().PageBytes());
  EXPECT_EQ(cache.layer(0).SlotOffset(8) * 2, cache.config().PageBytes());
}

}  // namespace
}  // namespace outrider
