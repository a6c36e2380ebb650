// Products whose columns go to rows of paged caches, in every body: the numbers are those of one y,
// and nothing else is written. Needs compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "outrider/kernels/cuda/matmul/matmul.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/matmul/matmul_shapes.h"
#include "tests/kernels/cuda/matmul/matmul_world.h"

namespace outrider::cuda {
namespace {

struct DestinationsCase {
  const char* name;
  WeightFormat format;
  int n;
  int k;
  int segments;
};

void PrintTo(const DestinationsCase& c, std::ostream* out) { *out << c.name; }

constexpr int kMostRows = 200;
constexpr int kBlock = 4;  // rows
constexpr int kGap = 12;   // floats behind the rows of a block
constexpr int kFirst = 64;
constexpr int kSecond = 128;  // columns

class MatMulDestinationsTest : public HopperTest<::testing::TestWithParam<DestinationsCase>> {
 protected:
  MatMulDestinationsTest() {
    const DestinationsCase& c = GetParam();
    d_x_ = DeviceArray<uint16_t>(
        DrawBf16(static_cast<size_t>(kMostRows) * c.k, Spread::kNormal, random_));
    w_.emplace(PlainWeight(c.n, c.k, c.format, Spread::kNormal, random_), nullptr, c.segments);
    // Places in any order. Every seventh row is not stored.
    std::vector<int64_t> places(kMostRows);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random_);
    for (size_t i = 0; i < places.size(); ++i) {
      slots_.push_back(i % 7 == 3 ? -1 : places[i]);
    }
    d_slots_ = DeviceArray<int64_t>(slots_);
  }

  MatMulParams Params(int rows, const MatMulShape* shape) const {
    MatMulParams params;
    params.rows = rows;
    params.x = d_x_.data();
    params.x_stride = GetParam().k;
    params.w = w_->weight();
    params.shape = shape;
    return params;
  }

  std::mt19937 random_{8};
  DeviceArray<uint16_t> d_x_;
  std::optional<DeviceWeight> w_;
  std::vector<int64_t> slots_;
  DeviceArray<int64_t> d_slots_;
};

TEST_P(MatMulDestinationsTest, HaveTheNumbersOfOneY) {
  const DestinationsCase& c = GetParam();
  const int rest = c.n - kFirst - kSecond;
  // Rows of a page hold the second columns, then the first.
  constexpr int kWidth = kFirst + kSecond + 4;
  constexpr int kBlockStride = kBlock * kWidth + kGap;
  const size_t rest_stride = static_cast<size_t>(rest + 3) / 4 * 4 + 4;
  for (const MatMulShape* const shape : ShapesOf(w_->weight(), false)) {
    for (const int rows : {1, 2, 9, 33, 70, kMostRows}) {
      MatMulParams params = Params(rows, shape);
      params.y_stride = (c.n + 7) / 8 * 8;
      params.y_type = OutputType::kF32;
      const DeviceArray<float> y(static_cast<size_t>(rows) * params.y_stride);
      params.y = y.data();
      MatMul(params, nullptr);
      MatMulParams apart = Params(rows, shape);
      const DeviceArray<float> pages(static_cast<size_t>(kMostRows / kBlock + 1) * kBlockStride);
      const DeviceArray<float> others(static_cast<size_t>(rows) * rest_stride);
      MatMulDestination page = {.columns = kFirst,
                                .y = pages.data() + kSecond,
                                .row_stride = kWidth,
                                .slots = d_slots_.data(),
                                .block_size = kBlock,
                                .block_stride = kBlockStride};
      apart.destinations[0] = page;
      page.columns = kSecond;
      page.y = pages.data();
      apart.destinations[1] = page;
      apart.destinations[2] = {
          .columns = rest, .y = others.data(), .row_stride = static_cast<int64_t>(rest_stride)};
      apart.num_destinations = 3;
      MatMul(apart, nullptr);
      CudaOk(cudaDeviceSynchronize(), "run");

      const std::vector<float> all = y.Download();
      std::vector<float> want_pages = DeviceArray<float>(pages.size()).Download();
      std::vector<float> want_others = DeviceArray<float>(others.size()).Download();
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        const float* const row = &all[r * static_cast<size_t>(params.y_stride)];
        std::copy_n(row + kFirst + kSecond, rest, &want_others[r * rest_stride]);
        if (slots_[r] < 0) continue;
        float* const to = &want_pages[static_cast<size_t>(slots_[r] / kBlock * kBlockStride +
                                                          slots_[r] % kBlock * kWidth)];
        std::copy_n(row, kFirst, to + kSecond);
        std::copy_n(row + kFirst, kSecond, to);
      }
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
      };
      ASSERT_TRUE(same(pages.Download(), want_pages)) << rows << " rows, " << Name(shape);
      ASSERT_TRUE(same(others.Download(), want_others)) << rows << " rows, " << Name(shape);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, MatMulDestinationsTest,
    ::testing::Values(DestinationsCase{"Bf16", WeightFormat::kBf16, 448, 1024, 1},
                      DestinationsCase{"Bf16Segments", WeightFormat::kBf16, 320, 2048, 4},
                      DestinationsCase{"Bf16Ragged", WeightFormat::kBf16, 203, 336, 2},
                      DestinationsCase{"F8", WeightFormat::kF8, 448, 1024, 1},
                      DestinationsCase{"F8PowerSegments", WeightFormat::kF8PowerOfTwo, 203, 2048,
                                       8},
                      DestinationsCase{"F8Rows", WeightFormat::kF8Rows, 320, 1024, 2},
                      DestinationsCase{"Int4", WeightFormat::kInt4, 320, 2048, 4},
                      DestinationsCase{"Fp4", WeightFormat::kFp4, 320, 1024, 1},
                      DestinationsCase{"Nvfp4", WeightFormat::kNvfp4, 203, 1024, 2}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace outrider::cuda
