// The kernels before and behind the pass of Kimi Delta Attention: norms and gates against double
// precision and over batches, what they refuse. The pass itself: tests/ops/cuda/delta_ops_test.cc.
// Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/kda/kda_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kHeads = 3;
constexpr int kWidth = kHeads * kKdaDim;
constexpr int kRows = 90;
constexpr float kEpsilon = 1e-6F;

double SigmoidOf(float x) { return 1 / (1 + std::exp(-double{x})); }

class KdaRowsTest : public HopperTest<> {
 protected:
  /// float32 results of rows [first, first + count), alone in a launch.
  std::vector<float> NormGate(const std::vector<float>& x, const std::vector<float>& gates,
                              const std::vector<float>& norm, int first, int count) {
    const auto rows = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + int64_t{first} * kWidth,
                                all.begin() + int64_t{first + count} * kWidth);
    };
    const DeviceArray<float> on_device[] = {
        DeviceArray<float>(rows(x)), DeviceArray<float>(rows(gates)), DeviceArray<float>(norm)};
    const DeviceArray<float> y(static_cast<size_t>(count) * kWidth);
    KdaNormGateParams params;
    params.num_rows = count;
    params.heads = kHeads;
    params.x = on_device[0].data();
    params.x_stride = kWidth;
    params.norm = on_device[2].data();
    params.epsilon = kEpsilon;
    params.gates = on_device[1].data();
    params.gates_stride = kWidth;
    params.y = y.data();
    params.y_dtype = DType::kF32;
    params.y_stride = kWidth;
    CudaOk(KdaNormGate(params, nullptr), "KdaNormGate");
    return y.Download();
  }

  std::mt19937 random_{4};
};

TEST_F(KdaRowsTest, NormsAndGatesAreThoseOfEachRow) {
  const std::vector<float> x = NormalFloats(random_, size_t{kRows} * kWidth, 2.0F);
  const std::vector<float> gates = NormalFloats(random_, size_t{kRows} * kWidth, 3.0F);
  const std::vector<float> norm = NormalFloats(random_, kKdaDim);
  const std::vector<float> all = NormGate(x, gates, norm, 0, kRows);
  for (size_t i = 0; i < all.size(); ++i) {
    const float* const head = x.data() + i / kKdaDim * kKdaDim;
    double squares = 0;
    for (int d = 0; d < kKdaDim; ++d) squares += double{head[d]} * head[d];
    const double want =
        norm[i % kKdaDim] * x[i] / std::sqrt(squares / kKdaDim + kEpsilon) * SigmoidOf(gates[i]);
    ASSERT_NEAR(all[i], want, 2e-6 * std::abs(want) + 1e-9) << "number " << i;
  }
  for (const auto& [first, count] : {std::pair{0, 1}, {17, 1}, {89, 1}, {5, 16}, {40, 50}}) {
    const std::vector<float> part = NormGate(x, gates, norm, first, count);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + int64_t{first} * kWidth))
        << count << " rows from " << first;
  }
}

TEST_F(KdaRowsTest, HeadsAreGated) {
  constexpr int kValues = 96;
  constexpr int kStride = kHeads * kValues + 8;
  const std::vector<uint16_t> x = NormalBf16(random_, size_t{kRows} * kStride);
  const std::vector<float> gates = NormalFloats(random_, size_t{kRows} * kHeads, 2.0F);
  const DeviceArray<uint16_t> rows(x);
  const DeviceArray<float> on_device(gates);
  GateHeadsParams params;
  params.num_rows = kRows;
  params.heads = kHeads;
  params.width = kValues;
  params.gates = on_device.data();
  params.gates_stride = kHeads;
  params.x = rows.data();
  params.x_stride = kStride;
  CudaOk(GateHeads(params, nullptr), "GateHeads");
  const std::vector<uint16_t> got = rows.Download();
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kStride; ++i) {
      const auto at = static_cast<size_t>(r * kStride + i);
      if (i >= kHeads * kValues) {
        ASSERT_EQ(got[at], x[at]) << "between rows";
        continue;
      }
      const double want =
          Bf16ToFloat(x[at]) * SigmoidOf(gates[static_cast<size_t>(r * kHeads + i / kValues)]);
      ASSERT_NEAR(Bf16ToFloat(got[at]), want, 0.004 * std::abs(want)) << r << ", " << i;
    }
  }
}

TEST(KdaStates, EveryNumberHasAPlaceOfItsOwn) {
  std::vector<bool> taken(size_t{kKdaDim} * kKdaDim);
  for (int key = 0; key < kKdaDim; ++key) {
    for (int value = 0; value < kKdaDim; ++value) {
      const auto place = static_cast<size_t>(KdaStatePlace(key, value));
      ASSERT_LT(place, taken.size());
      ASSERT_FALSE(taken[place]) << key << ", " << value;
      taken[place] = true;
    }
  }
}

TEST(KdaArguments, OthersAreRefused) {
  KdaRowsParams rows;
  rows.heads = 2;
  rows.stride = rows.decay_stride = 2 * kKdaDim;
  rows.memory.page_bytes = int64_t{kKdaRowNumbers} * 4;
  EXPECT_EQ(KdaRows(rows, nullptr), cudaSuccess);  // no rows
  rows.memory.page_bytes -= 16;
  EXPECT_THROW(KdaRows(rows, nullptr), Error);
  KdaAttentionParams pass;
  pass.rows = rows;
  pass.out_stride = 2 * kKdaDim;
  pass.write_stride = 2;
  pass.rows.memory.page_bytes = int64_t{kKdaRowNumbers} * 4;
  EXPECT_EQ(KdaAttention(pass, nullptr), cudaSuccess);
  pass.write_stride = 1;
  EXPECT_THROW(KdaAttention(pass, nullptr), Error);
  pass.write_stride = 2;
  pass.rows.step.has_many_rows = true;
  EXPECT_THROW(KdaAttention(pass, nullptr), Error);  // no memory for blocks
  pass.rows.step.has_many_rows = false;
  pass.rows.step.num_requests = 70000;
  EXPECT_THROW(KdaAttention(pass, nullptr), Error);
  GateHeadsParams gates;
  gates.heads = 1;
  gates.width = 6;
  EXPECT_THROW(GateHeads(gates, nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
