// Layer norm with a bias against double precision, and the equality of a row's bits. Needs a GPU of
// compute capability 9.0.
#include "outrider/kernels/cuda/sparse/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

class LayerNormTest : public HopperTest<::testing::TestWithParam<int>> {};

TEST_P(LayerNormTest, MatchesDoublePrecisionAndKeepsBits) {
  const int width = GetParam();
  constexpr int kRows = 37;
  const int stride = width + 12;
  std::mt19937 random(3);
  std::vector<float> x = NormalFloats(random, size_t{kRows} * stride, 2.0F);
  for (float& value : x) value += 5.0F;  // the mean is not small
  const std::vector<float> weight = NormalFloats(random, width);
  const std::vector<float> bias = NormalFloats(random, width);
  const DeviceArray<float> d_weight(weight), d_bias(bias);
  const auto run = [&](int first, int rows, bool in_place) {
    const DeviceArray<float> from(std::vector<float>(x.begin() + int64_t{first} * stride,
                                                     x.begin() + int64_t{first + rows} * stride));
    const DeviceArray<float> to(size_t{1} * rows * stride);
    LayerNormParams params;
    params.num_rows = rows;
    params.width = width;
    params.x = from.data();
    params.x_stride = params.y_stride = stride;
    params.weight = d_weight.data();
    params.bias = d_bias.data();
    params.y = in_place ? from.data() : to.data();
    CudaOk(LayerNormRows(params, nullptr), "LayerNormRows");
    CudaOk(cudaDeviceSynchronize(), "run");
    return in_place ? from.Download() : to.Download();
  };
  const std::vector<float> all = run(0, kRows, false);
  for (int row = 0; row < kRows; ++row) {
    const float* of_row = x.data() + int64_t{row} * stride;
    double mean = 0;
    for (int i = 0; i < width; ++i) mean += of_row[i] / width;
    double variance = 0;
    for (int i = 0; i < width; ++i) variance += (of_row[i] - mean) * (of_row[i] - mean) / width;
    for (int i = 0; i < width; ++i) {
      const double wanted = weight[i] * ((of_row[i] - mean) / std::sqrt(variance + 1e-6)) + bias[i];
      ASSERT_NEAR(all[row * stride + i], wanted, 2e-6 * (4 + std::abs(wanted)))
          << "row " << row << ", column " << i;
    }
  }
  for (const int rows : {1, 3, 4, 9}) {
    for (const int first : {0, 5, kRows - rows}) {
      const std::vector<float> some = run(first, rows, rows % 2 != 0);
      for (int i = 0; i < rows; ++i) {
        ASSERT_TRUE(std::equal(some.begin() + int64_t{i} * stride,
                               some.begin() + int64_t{i} * stride + width,
                               all.begin() + int64_t{first + i} * stride))
            << rows << " rows from " << first;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hopper, LayerNormTest, ::testing::Values(128, 4, 36, 256, 1024));

TEST(LayerNormCases, RefuseWhatCannotBeNormed) {
  LayerNormParams params = {.num_rows = 1, .width = 1028, .x_stride = 1028, .y_stride = 1028};
  EXPECT_THROW(LayerNormRows(params, nullptr), Error);
  params.width = 128;
  params.y_stride = 130;
  EXPECT_THROW(LayerNormRows(params, nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
