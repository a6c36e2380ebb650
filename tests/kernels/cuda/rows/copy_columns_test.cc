// Columns copied between strided rows, at every alignment. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/rows/copy_columns.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

using CopyColumnsTest = HopperTest<>;

/// Several copies of random shapes into one array, of which everything else stays as it was.
TEST_F(CopyColumnsTest, CopiesWhatIsAskedAndNothingElse) {
  constexpr size_t kBytes = size_t{1} << 20;
  std::mt19937 random(3);
  std::vector<std::byte> source(kBytes);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random() % 255);
  const DeviceArray<std::byte> from(source);
  for (const int64_t unit : {1, 2, 4, 8, 16, 48}) {
    std::vector<std::byte> expected(kBytes, std::byte{0xFF});
    const DeviceArray<std::byte> to(kBytes);
    std::vector<ColumnCopy> copies;
    int64_t next = 0;  // in `to`
    for (int i = 0; i < 9; ++i) {
      const int64_t width = unit * static_cast<int64_t>(random() % 40);
      const int64_t rows = 1 + static_cast<int64_t>(random() % (i == 4 ? 300 : 9));
      const int64_t from_stride = width + unit * static_cast<int64_t>(random() % 3);
      const int64_t to_stride = width + unit * static_cast<int64_t>(random() % 3);
      const int64_t first = unit * static_cast<int64_t>(random() % 100);
      ASSERT_LT(first + rows * from_stride, static_cast<int64_t>(kBytes));
      ASSERT_LT(next + rows * to_stride, static_cast<int64_t>(kBytes));
      copies.push_back({.from = from.data() + first,
                        .to = to.data() + next,
                        .from_stride = from_stride,
                        .to_stride = to_stride,
                        .width = width,
                        .rows = rows});
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(source.begin() + first + r * from_stride, width,
                    expected.begin() + next + r * to_stride);
      }
      next += rows * to_stride;
    }
    ASSERT_EQ(CopyColumns(copies, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(to.Download(), expected) << "multiples of " << unit;
  }
}

TEST_F(CopyColumnsTest, NothingAndTooMuch) {
  EXPECT_EQ(CopyColumns({}, nullptr), cudaSuccess);
  EXPECT_EQ(CopyColumns(std::vector<ColumnCopy>(3), nullptr), cudaSuccess);
  EXPECT_THROW(CopyColumns(std::vector<ColumnCopy>(kMostColumnCopies + 1), nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
