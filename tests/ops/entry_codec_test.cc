// Numbers of cache entries in 8 and 4 bits, rounded as DeepSeek-V4 publishes it or plainly.
#include "outrider/ops/cpu/entry_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "outrider/kv/network_cache.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/kv_cache.h"

namespace outrider::cpu {
namespace {

/// One layer with pages of four entries.
KvCache OneLayer(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  return {{GetCpuOps(Isa::kReference)},
          {.groups = {{.tokens_per_block = 4}}, .num_pages = 3},
          {layer},
          numbers};
}

std::vector<float> RandomRow(int32_t width, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<size_t>(width));
  const float magnitude = std::exp2(normal(random) * 4);
  for (float& x : row) x = normal(random) * magnitude;
  return row;
}

/// The least power of two with which `most` becomes at most `largest`.
double Scale(double most, double largest) {
  double scale = std::exp2(-200);
  while (most / scale > largest) scale *= 2;
  return scale;
}

TEST(EntryCodec, EntriesAreCodesInGroupsWithAScaleEach) {
  std::mt19937 random(5);
  // 150 codes: two groups and a part of one; ten rotated numbers.
  for (const DType rotated : {DType::kF32, DType::kBF16}) {
    KvCache cache = OneLayer({.width = 160, .rope = 10}, {DType::kF8E4M3, rotated});
    const LayerCache layer = cache.layer(0);
    EXPECT_EQ(layer.dtype, DType::kF8E4M3);
    EXPECT_EQ(layer.code_bytes, rotated == DType::kF32 ? 196 : 176);
    EXPECT_EQ(cache.config().groups[0].unit_bytes, layer.code_bytes);
    EXPECT_EQ(LoadedType(layer), rotated);
    for (int64_t slot = 0; slot < 12; ++slot) {
      std::vector<float> row = RandomRow(160, random);
      if (slot == 3) std::fill_n(row.begin(), 64, 1e-6F);  // below the least magnitude
      if (slot == 4) std::fill_n(row.begin(), 64, 0.0F);
      if (slot == 5) {  // the largest code with the least one
        std::fill_n(row.begin(), 64, 0x1p-9F / 4);
        row[7] = 448.0F / 4;
      }
      StoreEntry(layer, slot, row.data());
      std::vector<std::byte> buffer(160 * sizeof(float));
      const std::byte* entry = LoadEntry(layer, slot, buffer.data());
      for (int32_t i = 0; i < 160; ++i) {
        float got = 0;
        if (rotated == DType::kF32) {
          std::memcpy(&got, entry + static_cast<size_t>(i) * 4, 4);
        } else {
          BFloat16 narrow;
          std::memcpy(&narrow, entry + static_cast<size_t>(i) * 2, 2);
          got = ToFloat(narrow);
        }
        const float value = row[static_cast<size_t>(i)];
        if (i >= 150) {
          EXPECT_EQ(got, rotated == DType::kF32 ? value : RoundToBFloat16(value));
          continue;
        }
        double most = 1e-4F;
        for (int32_t j = i / 64 * 64; j < std::min(150, i / 64 * 64 + 64); ++j) {
          most = std::max(most, std::fabs(double{row[static_cast<size_t>(j)]}));
        }
        const auto scale = static_cast<float>(Scale(most, 448));
        EXPECT_EQ(got, Float8E4M3ToFloat(ToFloat8E4M3(value / scale)) * scale) << i;
      }
    }
  }
}

// As a GPU keeps what DeepSeek-V4 attends to.
TEST(EntryCodec, PerTensorEntriesArePlainAndIndexKeysHaveAScaleEach) {
  const CacheNumbers numbers(DType::kF8E4M3, DType::kBF16, Fp8Form::kPerTensor);
  KvCache entries = OneLayer({.width = 160, .rope = 10}, numbers);
  EXPECT_EQ(entries.layer(0).dtype, DType::kF8E4M3);
  EXPECT_EQ(entries.layer(0).code_bytes, 0);
  EXPECT_FALSE(entries.layer(0).has_scales);
  EXPECT_EQ(entries.config().groups[0].unit_bytes, 160);
  KvCache keys = OneLayer({.width = 128, .use = CacheUse::kIndexKeys}, numbers);
  EXPECT_EQ(keys.layer(0).dtype, DType::kF8E4M3);
  EXPECT_EQ(keys.layer(0).code_bytes, 0);
  EXPECT_TRUE(keys.layer(0).has_scales);
  EXPECT_EQ(keys.config().groups[0].unit_bytes, 132);
}

TEST(EntryCodec, PlainEntriesAreTheCodesOfTheirNumbers) {
  std::mt19937 random(9);
  for (const DType rotated : {DType::kF32, DType::kBF16}) {
    KvCache cache = OneLayer({.width = 37, .use = CacheUse::kPlain}, {DType::kF8E4M3, rotated});
    const LayerCache layer = cache.layer(0);
    EXPECT_TRUE(HoldsCodes(layer));
    EXPECT_EQ(layer.code_bytes, 0);
    EXPECT_EQ(cache.config().groups[0].unit_bytes, 40) << "a whole multiple of 4";
    for (int64_t slot = 0; slot < 12; ++slot) {
      std::vector<float> row = RandomRow(37, random);
      row[3] = 1000;  // more than there is
      row[4] = -1000;
      row[5] = -0.0F;
      StoreEntry(layer, slot, row.data());
      std::vector<std::byte> buffer(37 * sizeof(float));
      const std::byte* entry = LoadEntry(layer, slot, buffer.data());
      for (size_t i = 0; i < 37; ++i) {
        float got = 0;
        if (rotated == DType::kF32) {
          std::memcpy(&got, entry + i * 4, 4);
        } else {
          BFloat16 narrow;
          std::memcpy(&narrow, entry + i * 2, 2);
          got = ToFloat(narrow);
        }
        EXPECT_EQ(got, Float8E4M3ToFloat(ToFloat8E4M3(row[i]))) << i;
      }
    }
  }
}

TEST(EntryCodec, KeysOfTokensAreTransformedAndBecomeEightBitsWithAScale) {
  std::mt19937 random(10);
  KvCache cache = OneLayer({.width = 64, .use = CacheUse::kTokenKeys}, DType::kF8E4M3);
  const LayerCache layer = cache.layer(0);
  EXPECT_TRUE(layer.has_scales);
  EXPECT_EQ(layer.code_bytes, 0);
  EXPECT_EQ(cache.config().groups[0].unit_bytes, 68);
  std::vector<std::vector<float>> stored;
  for (int64_t slot = 0; slot < 12; ++slot) {
    std::vector<float> row = RandomRow(64, random);
    if (slot == 3) std::fill(row.begin(), row.end(), 0.0F);
    if (slot == 4) std::fill(row.begin(), row.end(), 1e-9F);  // below the least magnitude
    StoreEntry(layer, slot, row.data());
    std::vector<float>& got = stored.emplace_back(64);
    LoadFloats(layer, slot, got.data());
    std::vector<float> query = row;
    RoundIndexQuery(layer, query.data());
    EXPECT_EQ(query, got) << "queries are rounded as keys";
    std::vector<double> want(64);
    double most = 1e-4F;
    for (unsigned i = 0; i < 64; ++i) {
      for (unsigned j = 0; j < 64; ++j) {
        want[i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * double{row[j]} / 8;
      }
      most = std::max(most, std::fabs(want[i]));
    }
    const double scale = Scale(most, 448);
    float of_entry = 0;
    std::memcpy(&of_entry, layer.data + layer.ScaleOffset(slot), sizeof(of_entry));
    EXPECT_EQ(of_entry, scale) << slot;
    for (size_t i = 0; i < 64; ++i) {
      // To the nearest of numbers with four bits, or of multiples of 2^-9.
      const double step = std::max(std::fabs(want[i]) / 16, scale * 0x1p-10);
      EXPECT_NEAR(got[i], want[i], step * (1 + 1e-4)) << "slot " << slot << ", number " << i;
    }
  }
  // Nobody's codes or scale lie in another's place.
  for (int64_t slot = 0; slot < 12; ++slot) {
    std::vector<float> got(64);
    LoadFloats(layer, slot, got.data());
    EXPECT_EQ(got, stored[static_cast<size_t>(slot)]) << slot;
  }
}

TEST(EntryCodec, IndexKeysAreTransformedAndBecomeFourBits) {
  std::mt19937 random(6);
  KvCache cache = OneLayer({.width = 64, .use = CacheUse::kIndexKeys}, DType::kF8E4M3);
  const LayerCache layer = cache.layer(0);
  EXPECT_EQ(layer.dtype, DType::kF4E2M1);
  EXPECT_EQ(layer.code_bytes, 36);
  for (int64_t slot = 0; slot < 12; ++slot) {
    std::vector<float> row = RandomRow(64, random);
    StoreEntry(layer, slot, row.data());
    std::vector<float> got(64);
    LoadFloats(layer, slot, got.data());
    std::vector<float> query = row;
    RoundIndexQuery(layer, query.data());
    EXPECT_EQ(query, got) << "queries are rounded as keys";
    // H(i, j) is -1 to the number of ones that i and j share.
    std::vector<double> want(64);
    for (unsigned i = 0; i < 64; ++i) {
      for (unsigned j = 0; j < 64; ++j) {
        want[i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * double{row[j]} / 8;
      }
    }
    for (size_t i = 0; i < 64; ++i) {
      double most = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        most = std::max(most, std::fabs(want[j]));
      }
      const double scale = Scale(most, 6);
      // The transform's own rounding may move a value over a middle.
      const double step = std::fabs(want[i]) / scale < 2   ? 0.5
                          : std::fabs(want[i]) / scale < 4 ? 1
                                                           : 2;
      EXPECT_NEAR(got[i], want[i], scale * step / 2 * (1 + 1e-5)) << i;
    }
  }
}

TEST(EntryCodec, PlainEntriesAreWhereTheyAre) {
  KvCache cache = OneLayer({.width = 8}, DType::kBF16);
  const LayerCache layer = cache.layer(0);
  const std::vector<float> row = {1, 2, 3, 4, 5, 6, 7, 8};
  StoreEntry(layer, 5, row.data());
  EXPECT_EQ(LoadEntry(layer, 5, nullptr), layer.data + layer.SlotOffset(5) * 2);
  std::vector<float> got(8);
  EXPECT_EQ(LoadFloats(layer, 5, got.data()), got.data());
  EXPECT_EQ(got, row);
}

}  // namespace
}  // namespace outrider::cpu
