// The choice of entries against its definition. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sparse/choose_entries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/sparse_world.h"
#include "tests/kernels/highest_of.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kUntouched = -7;

/// The choice as a processor makes it (CpuOps::SelectEntries): floats compared, the lower of equals
/// first. A NaN is smaller than all.
std::vector<int32_t> Choose(std::vector<float> scores, int top_k) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  return HighestOf(scores, top_k);
}

class ChooseEntriesTest : public HopperTest<> {
 protected:
  /// Rows of scores, of any lengths.
  void Check(const std::vector<std::vector<float>>& rows, int top_k, const char* what,
             bool graph = false) {
    constexpr int kFirst = 3;  // rows before the call's
    size_t most = 0;
    for (const std::vector<float>& row : rows) most = std::max(most, row.size());
    const int64_t stride = (static_cast<int64_t>(most) + 3) / 4 * 4;
    std::vector<float> scores(rows.size() * stride, std::numeric_limits<float>::infinity());
    std::vector<int> visible(kFirst, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy(rows[i].begin(), rows[i].end(), scores.begin() + static_cast<int64_t>(i) * stride);
      visible.push_back(static_cast<int>(rows[i].size()));
    }
    const int64_t lists_stride = top_k + 5;
    const DeviceArray<float> d_scores(scores);
    const DeviceArray<int> d_visible(visible);
    const DeviceArray<int32_t> lists(
        std::vector<int32_t>((rows.size() + kFirst) * lists_stride, kUntouched));
    ChooseEntriesParams params;
    params.first_row = kFirst;
    params.num_rows = static_cast<int>(rows.size());
    params.rows.visible = d_visible.data();
    params.top_k = top_k;
    params.max_visible = static_cast<int>(most);
    params.scores = d_scores.data();
    params.scores_stride = stride;
    params.lists = lists.data();
    params.lists_stride = lists_stride;
    RunOnDevice(
        [&](cudaStream_t stream) { CudaOk(ChooseEntries(params, stream), "ChooseEntries"); },
        graph ? 2 : 0);
    const std::vector<int32_t> got = lists.Download();
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<int32_t> wanted = Choose(rows[i], top_k);
      wanted.resize(static_cast<size_t>(lists_stride), kUntouched);
      const auto begin = got.begin() + static_cast<int64_t>(i + kFirst) * lists_stride;
      ASSERT_EQ(std::vector<int32_t>(begin, begin + lists_stride), wanted)
          << what << ", row " << i << " of " << rows[i].size() << " scores, top " << top_k;
    }
  }

  std::vector<float> Row(int count, const std::function<float(int)>& score) {
    std::vector<float> row(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) row[static_cast<size_t>(i)] = score(i);
    return row;
  }
  float Normal() { return normal_(random_); }

  std::mt19937 random_{29};
  std::normal_distribution<float> normal_;
};

TEST_F(ChooseEntriesTest, ChoosesTheLargestOfRandomScores) {
  for (const int top_k : {1, 5, 64, 512, 2048}) {
    std::vector<std::vector<float>> rows;
    for (const int count : {1, 3, 64, 65, 600, 2047, 2048, 2049, 2050, 5000, 8192, 32768, 49152}) {
      rows.push_back(Row(count, [&](int) { return Normal(); }));
    }
    Check(rows, top_k, "random scores");
    Check(rows, top_k, "random scores in a graph", true);
  }
}

TEST_F(ChooseEntriesTest, GivesTiesToTheLowerIndex) {
  std::vector<std::vector<float>> rows;
  for (const int count : {2049, 3000, 8191, 40000}) {
    rows.push_back(Row(count, [](int) { return 1.5F; }));
    rows.push_back(Row(count, [&](int) { return std::max(0.0F, Normal() - 1.0F); }));
    rows.push_back(Row(count, [&](int) { return std::round(Normal() * 2); }));
    // ReLU times a negative weight is -0.
    rows.push_back(Row(count, [&](int i) { return i % 3 == 0 ? -0.0F : 0.0F; }));
    rows.push_back(Row(count, [&](int i) {
      return i % 5 == 0 ? std::max(0.0F, Normal()) : i % 2 == 0 ? -0.0F : 0.0F;
    }));
    rows.push_back(Row(count, [&](int i) { return i % 7 == 0 ? 0.0F : -std::abs(Normal()); }));
  }
  for (const int top_k : {1, 100, 2048}) Check(rows, top_k, "ties");
}

TEST_F(ChooseEntriesTest, OrdersAllKindsOfFloats) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> rows;
  for (const int count : {2060, 10000}) {
    rows.push_back(Row(
        count, [&](int) { return std::ldexp(Normal(), static_cast<int>(random_() % 250) - 140); }));
    rows.push_back(Row(count, [&](int i) {
      return i % 4 == 0 ? kInfinity : i % 4 == 1 ? -kInfinity : Normal();
    }));
    rows.push_back(Row(count, [&](int i) { return i % 9 == 0 ? std::nanf("") : Normal(); }));
    rows.push_back(
        Row(count, [&](int i) { return 1.0F + static_cast<float>(i % 100) * 0x1p-23F; }));
    rows.push_back(Row(count, [&](int i) { return static_cast<float>(i); }));
    rows.push_back(Row(count, [&](int i) { return static_cast<float>(-i); }));
    rows.push_back(Row(count, [&](int i) {
      return static_cast<float>(i % 11) * std::numeric_limits<float>::denorm_min();
    }));
  }
  for (const int top_k : {3, 2048}) Check(rows, top_k, "kinds of floats");
}

TEST_F(ChooseEntriesTest, ChoosesAmongMoreThanSharedMemoryHolds) {
  std::vector<std::vector<float>> rows;
  for (const int count : {49153, 131072, 160001}) {
    rows.push_back(Row(count, [&](int) { return Normal(); }));
    rows.push_back(Row(count, [&](int) { return std::max(0.0F, Normal() - 2.5F); }));
    rows.push_back(Row(count, [&](int i) { return i % 2 == 0 ? -0.0F : 0.0F; }));
  }
  rows.push_back(Row(100, [&](int) { return Normal(); }));
  Check(rows, 2048, "long rows");
}

TEST_F(ChooseEntriesTest, SmallForTheSanitizers) {
  Check({Row(10, [&](int) { return Normal(); }), Row(300, [&](int) { return Normal(); }),
         Row(1500, [&](int) { return std::max(0.0F, Normal()); })},
        64, "small rows");
}

TEST_F(ChooseEntriesTest, RefusesWhatItCannotChoose) {
  ChooseEntriesParams params = {.num_rows = 1, .top_k = 64, .max_visible = 100};
  params.scores_stride = 100;
  params.lists_stride = 63;
  EXPECT_THROW(ChooseEntries(params, nullptr), Error);
  params.lists_stride = 64;
  params.scores_stride = 98;
  EXPECT_THROW(ChooseEntries(params, nullptr), Error);
  params.scores_stride = 100;
  params.top_k = 0;
  EXPECT_THROW(ChooseEntries(params, nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
