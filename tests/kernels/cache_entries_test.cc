// write_latent, write_entries and gather_latent: entries against rms_norm, rotate and rounding done
// by hand.

#include "tests/kernels/paged_cache.h"

namespace outrider {
namespace {

class CacheEntriesTest : public KernelTest {};

TEST_P(CacheEntriesTest, WritesNormalisedLatentAndRotatedKeyToMappedSlotsOnly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [latent, rope] : {std::pair{512, 64}, {20, 6}, {33, 2}}) {
      const int64_t rows = Pick(1, 50);
      PagedCache paged(dtype, 16, latent + rope, 8, random);
      std::vector<int64_t> slots(128);
      std::iota(slots.begin(), slots.end(), 0);
      std::shuffle(slots.begin(), slots.end(), random);
      for (int64_t r = 0; r < rows; r += 5) slots[static_cast<size_t>(r)] = -1;
      const TestMatrix kv = TestMatrix::Random(rows, latent + rope, random, 3);
      const TestMatrix weight = TestMatrix::Random(1, latent, random);
      const TestMatrix cos = TestMatrix::Random(rows, rope / 2, random);
      const TestMatrix sin = TestMatrix::Random(rows, rope / 2, random, 1);
      const RotaryRows rotary = {
          .cos = cos.view(), .sin = sin.view(), .interleaved = Pick(0, 1) == 1};
      kernels.write_latent(pool, kv.view(), weight.values.data(), 1e-6f, rotary, slots.data(),
                           paged.cache());

      TestMatrix want = kv;
      kernels.rms_norm(single, kv.view().Columns(0, latent), weight.values.data(), 1e-6f,
                       want.view().Columns(0, latent));
      kernels.rotate(single, want.view(), 1, latent + rope, latent, rotary);
      std::vector<bool> written(128);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t slot = slots[static_cast<size_t>(r)];
        if (slot < 0) continue;
        written[static_cast<size_t>(slot)] = true;
        for (int64_t i = 0; i < latent + rope; ++i) {
          const float value = want.view().row(r)[i];
          ASSERT_EQ(paged.Get(paged.cache().SlotOffset(slot) + i),
                    dtype == DType::kF32 ? value : RoundToBFloat16(value));
        }
      }
      for (int64_t slot = 0; slot < 128; ++slot) {
        if (written[static_cast<size_t>(slot)]) continue;
        ASSERT_TRUE(std::isnan(paged.Get(paged.cache().SlotOffset(slot)))) << slot;
      }
    }
  }
}

TEST_P(CacheEntriesTest, WritesEntriesAsTheyAreToMappedSlotsOnly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t width : {1088, 45}) {
      const int64_t rows = Pick(1, 50);
      PagedCache paged(dtype, 16, width, 8, random);
      std::vector<int64_t> slots(128);
      std::iota(slots.begin(), slots.end(), 0);
      std::shuffle(slots.begin(), slots.end(), random);
      slots[0] = -1;
      const TestMatrix entries = TestMatrix::Random(rows, width, random, 3);
      kernels.write_entries(pool, entries.view(), slots.data(), paged.cache());
      for (int64_t r = 1; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          const float value = entries.view().row(r)[i];
          ASSERT_EQ(paged.Get(paged.cache().SlotOffset(slots[static_cast<size_t>(r)]) + i),
                    dtype == DType::kF32 ? value : RoundToBFloat16(value));
        }
      }
      for (int64_t r = rows; r < 128; ++r) {
        ASSERT_TRUE(std::isnan(paged.Get(paged.cache().SlotOffset(slots[static_cast<size_t>(r)]))))
            << r;
      }
    }
  }
}

TEST_P(CacheEntriesTest, GatherReadsTheRequestsPositionsExactly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [latent, rope] : {std::pair{512, 64}, {20, 6}, {33, 2}}) {
      for (const int32_t block_size : {1, 16, 64}) {
        const int64_t width = latent + rope;
        PagedCache paged(dtype, block_size, latent + rope, 300 / block_size + 5, random);
        const std::vector<int32_t> table = paged.Allocate(200);
        paged.Fill(table, 0, 200, random);
        const int32_t first = Pick(0, 150);
        const int64_t rows = Pick(0, 50);
        TestMatrix latents(rows, latent, 1);
        TestMatrix ropes(rows, rope, 5);
        kernels.gather_latent(pool, paged.cache(), table.data(), first, latents.view(),
                              ropes.view());
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t entry = paged.Element(table, first + r);
          for (int64_t i = 0; i < width; ++i) {
            const float got =
                i < latent ? latents.view().row(r)[i] : ropes.view().row(r)[i - latent];
            ASSERT_EQ(got, paged.Get(entry + i));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CacheEntriesTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
