// What tensors are packed as on the GPU, and random codes as the device makes them, beside the
// CPU's. Only the latter needs a GPU.
#include "outrider/ops/cuda/weight_formats.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "outrider/checkpoint/dummy_tensor.h"
#include "outrider/checkpoint/quantization.h"
#include "outrider/kernels/cuda/matmul/load_weights.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr DummyStream kStream = {.key = 5, .center = 0, .half_width = 0.11F};

OpenPart Open(StoredFormat format, int64_t rows, int64_t cols, int64_t block = 128) {
  const Quantization blocks = {.block_rows = block, .block_cols = block};
  return {TensorPart::Whole("w", rows, cols),
          MakeDummyCodes(std::vector<int64_t>{rows, cols}, kStream, format, blocks)};
}

WeightFormat FormatOfOne(OpenPart part) {
  std::vector<OpenPart> parts;
  parts.push_back(std::move(part));
  return FormatOf(parts);
}

TEST(WeightFormats, CodesStayCodesWhereAKernelReadsThem) {
  using enum StoredFormat;
  EXPECT_EQ(FormatOfOne(Open(kInt4, 64, 96)), WeightFormat::kInt4);
  EXPECT_EQ(FormatOfOne(Open(kMxfp4, 64, 96)), WeightFormat::kFp4);
  EXPECT_EQ(FormatOfOne(Open(kNvfp4, 64, 80)), WeightFormat::kNvfp4);
  EXPECT_EQ(FormatOfOne(Open(kFp8Row, 64, 100)), WeightFormat::kF8Rows);
  EXPECT_EQ(FormatOfOne(Open(kFp8Tensor, 64, 100)), WeightFormat::kF8Rows);
  EXPECT_EQ(FormatOfOne(Open(kFp8Block, 300, 200)), WeightFormat::kF8PowerOfTwo);
  EXPECT_EQ(FormatOfOne(Open(kFp8Block, 300, 200, 64)), WeightFormat::kBf16);
  OpenPart part = Open(kInt4, 64, 96);
  part.part.first_col = 32;
  part.part.cols = 64;
  EXPECT_EQ(FormatOfOne(std::move(part)), WeightFormat::kInt4);
  part = Open(kInt4, 64, 96);
  part.part.first_col = 16;
  part.part.cols = 64;
  EXPECT_EQ(FormatOfOne(std::move(part)), WeightFormat::kBf16) << "a cut group";
}

TEST(WeightFormats, OfMatricesThatArePackedAlike) {
  using enum WeightFormat;
  EXPECT_EQ(Together(kInt4, kInt4), kInt4);
  EXPECT_EQ(Together(kF8, kF8PowerOfTwo), kF8);
  EXPECT_EQ(Together(kF8PowerOfTwo, kF8Rows), kBf16);
  EXPECT_EQ(Together(kFp4, kNvfp4), kBf16);
  EXPECT_EQ(Together(kInt4, kBf16), kBf16);
}

TEST(WeightFormats, ScalesOfRowsAndGroups) {
  const OpenPart row = Open(StoredFormat::kFp8Row, 3, 64);
  EXPECT_EQ(ScalesOf(row, WeightFormat::kF8Rows).size(), 3);
  const OpenPart nvfp4 = Open(StoredFormat::kNvfp4, 2, 64);
  const float global = nvfp4.tensor->group_scales()->global;
  EXPECT_EQ(ScalesOf(nvfp4, WeightFormat::kNvfp4), std::vector<float>(2, global));
  EXPECT_TRUE(ScalesOf(Open(StoredFormat::kInt4, 2, 64), WeightFormat::kInt4).empty());
  EXPECT_EQ(GroupScaleBytes(WeightFormat::kInt4, 64), 4);
  EXPECT_EQ(GroupScaleBytes(WeightFormat::kNvfp4, 64), 4);
  EXPECT_EQ(GroupScaleBytes(WeightFormat::kFp4, 64), 2);
}

using RandomCodesTest = HopperTest<>;

TEST_F(RandomCodesTest, AreTheCpus) {
  constexpr int64_t kRows = 37, kCols = 192;
  for (const StoredFormat format :
       {StoredFormat::kInt4, StoredFormat::kMxfp4, StoredFormat::kNvfp4}) {
    const OpenPart open = Open(format, kRows, kCols);
    std::vector<uint8_t> want(kRows * kCols / 2);
    open.tensor->ReadCodes(0, kRows, want.data());
    float scale = 1;
    while (scale > kStream.half_width / (format == StoredFormat::kInt4 ? 7.0F : 6.0F)) scale /= 2;
    scale *= 2;  // the least power of two with which they fit
    const DeviceArray<uint8_t> codes(want.size());
    const DummyPart whole = {.stream = kStream, .tensor_cols = kCols, .rows = kRows, .cols = kCols};
    const bool integers = format == StoredFormat::kInt4;
    CudaOk(FillDummyCodes(whole, scale, integers, codes.data(), nullptr), "codes");
    CudaOk(cudaDeviceSynchronize(), "codes");
    EXPECT_EQ(codes.Download(), want) << StoredFormatName(format);
    // Some rows and columns.
    const DummyPart part = {.stream = kStream,
                            .tensor_cols = kCols,
                            .first_row = 5,
                            .first_col = 64,
                            .rows = 9,
                            .cols = 32};
    const DeviceArray<uint8_t> some(9 * 32 / 2);
    CudaOk(FillDummyCodes(part, scale, integers, some.data(), nullptr), "codes");
    CudaOk(cudaDeviceSynchronize(), "codes");
    const std::vector<uint8_t> got = some.Download();
    for (size_t row = 0; row < 9; ++row) {
      const auto from = want.begin() + static_cast<int64_t>((5 + row) * kCols / 2 + 32);
      EXPECT_TRUE(std::equal(from, from + 16, got.begin() + static_cast<int64_t>(row) * 16))
          << StoredFormatName(format) << ", row " << row;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
