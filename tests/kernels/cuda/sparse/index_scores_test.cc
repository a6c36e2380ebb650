// Index scores and the plan of sparse rows: against double precision, and the equality of a score's
// bits in every step. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sparse/index_scores.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/sparse_world.h"

namespace outrider::cuda {
namespace {

struct ScoresShape {
  int heads;
  int ratio;
  bool codes = false;  // queries and keys are e4m3, keys with a scale each
};

/// How a step is run.
struct ScoresRun {
  int page_size = 64;
  int gap = 0;
  int score_rows = 32;
  int padding = 0;
  bool graph = false;
};

using RowScores = std::map<std::pair<int, int>, std::vector<float>>;  // by request, position

class IndexScoresTest : public HopperTest<::testing::TestWithParam<ScoresShape>> {
 protected:
  static constexpr int kTopK = 48;
  static constexpr int kQueries = 70;  // the last positions of a request, which have queries

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    const auto [heads, ratio, codes] = GetParam();
    std::vector<int> counts;
    for (const int length : kLengths) {
      counts.push_back(length / ratio);
      q_.push_back(NormalBf16(random_, size_t{kQueries} * heads * kIndexDim));
      weights_.push_back(NormalFloats(random_, size_t{kQueries} * heads));
    }
    keys_ = std::make_unique<SparseEntries>(random_, counts, kIndexDim, codes ? 40.0F : 1.0F);
    for (const int count : counts) {
      std::vector<float>& of_request = scales_.emplace_back();
      for (int i = 0; i < count; ++i) {
        of_request.push_back(codes ? std::exp2(static_cast<float>(random_() % 9) - 8) : 1.0F);
      }
    }
    if (!codes) return;
    keys_->RoundToCodes();
    for (std::vector<uint16_t>& q : q_) {
      for (uint16_t& value : q) {
        value = ToBFloat16(Float8E4M3ToFloat(ToFloat8E4M3(40 * Bf16ToFloat(value)))).bits;
      }
    }
  }

  std::vector<Window> AllWindows(int rows) const { return LastWindows(kLengths, rows); }

  size_t QueryOf(const SparseRow& row) const {
    return static_cast<size_t>(row.position -
                               (kLengths[static_cast<size_t>(row.request)] - kQueries));
  }

  RowScores Run(const std::vector<Window>& windows, const ScoresRun& run) {
    const auto [heads, ratio, codes] = GetParam();
    const std::vector<SparseRow> step = RowsOf(windows);
    std::vector<uint16_t> q;
    // Weights as a product leaves them beside something else.
    const int64_t weights_stride = heads + 8;
    std::vector<float> weights((step.size() + run.padding) * weights_stride, NAN);
    for (size_t i = 0; i < step.size(); ++i) {
      const auto r = static_cast<size_t>(step[i].request);
      const auto at = static_cast<int64_t>(QueryOf(step[i]));
      q.insert(q.end(), q_[r].begin() + at * heads * kIndexDim,
               q_[r].begin() + (at + 1) * heads * kIndexDim);
      std::copy_n(weights_[r].begin() + at * heads, heads,
                  weights.begin() + static_cast<int64_t>(i) * weights_stride);
    }
    q.resize(q.size() + size_t(run.padding) * heads * kIndexDim, 0xFFFF);
    if (codes) {
      for (size_t i = 0; i < q.size() / 2; ++i) {
        q[i] = static_cast<uint16_t>(ToFloat8E4M3(Bf16ToFloat(q[2 * i])) |
                                     ToFloat8E4M3(Bf16ToFloat(q[2 * i + 1])) << 8);
      }
      q.resize(q.size() / 2);
    }
    const DeviceArray<uint16_t> d_q(q);
    const DeviceArray<float> d_weights(weights);
    DevicePages pages(random_, codes ? keys_->AsCodes() : *keys_, windows, run.page_size, run.gap);
    if (codes) pages.AddScales(windows, scales_);
    const DeviceRows rows(
        windows,
        {.ratio = ratio, .top_k = kTopK, .index_heads = heads, .score_rows = run.score_rows},
        run.padding);
    const int64_t stride = *std::max_element(kLengths.begin(), kLengths.end()) / ratio + 3;
    const DeviceArray<float> scores(rows.num_rows() * stride);
    IndexScoresParams params;
    params.step_rows = rows.num_rows();
    params.rows = rows.rows();
    params.heads = heads;
    params.q = d_q.data();
    params.weights = d_weights.data();
    params.weights_stride = weights_stride;
    params.keys = pages.pages();
    params.codes = codes;
    params.scores_stride = stride;
    const auto launch = [&](cudaStream_t stream) {
      rows.Plan(stream);
      for (int first = 0; first < rows.num_rows(); first += run.score_rows) {
        params.first_row = first;
        params.num_rows = std::min(run.score_rows, rows.num_rows() - first);
        params.scores = scores.data() + first * stride;
        CudaOk(ScoreIndexKeys(params, stream), "ScoreIndexKeys");
      }
    };
    RunOnDevice(launch, run.graph ? 3 : 0);
    const std::vector<float> all = scores.Download();
    RowScores results;
    for (size_t i = 0; i < step.size(); ++i) {
      const auto begin = all.begin() + static_cast<int64_t>(i) * stride;
      const int visible = (step[i].position + 1) / ratio;
      if (visible > kTopK) {
        results[{step[i].request, step[i].position}] = {begin, begin + visible};
      }
      // Nothing is written behind what a row sees.
      for (int64_t j = visible; j < stride; ++j) {
        if (std::bit_cast<uint32_t>(*(begin + j)) != ~0U) {
          ADD_FAILURE() << "row " << i << " writes score " << j << " of " << visible;
          return results;
        }
      }
    }
    return results;
  }

  void ExpectParts(const RowScores& some, const RowScores& all, const char* what) {
    ASSERT_FALSE(some.empty()) << what;
    for (const auto& [row, scores] : some) {
      const std::vector<float>& wanted = all.at(row);
      ASSERT_EQ(scores.size(), wanted.size());
      for (size_t j = 0; j < scores.size(); ++j) {
        ASSERT_EQ(std::bit_cast<uint32_t>(scores[j]), std::bit_cast<uint32_t>(wanted[j]))
            << what << ": request " << row.first << ", position " << row.second << ", key " << j;
      }
    }
  }

  const std::vector<int> kLengths = {1500, 90, 257, 4100, 128, 2000};
  std::mt19937 random_{23};
  std::vector<std::vector<uint16_t>> q_;     // [kQueries, heads, 128]
  std::vector<std::vector<float>> weights_;  // [kQueries, heads]
  std::unique_ptr<SparseEntries> keys_;
  std::vector<std::vector<float>> scales_;  // of keys
};

TEST_P(IndexScoresTest, MatchDoublePrecision) {
  const auto [heads, ratio, codes] = GetParam();
  const RowScores scores = Run(AllWindows(7), {});
  ASSERT_FALSE(scores.empty());
  for (const auto& [row, of_row] : scores) {
    const auto r = static_cast<size_t>(row.first);
    const std::vector<float> keys = keys_->Floats(row.first);
    const std::vector<float> q = ToFloats(q_[r]);
    const auto at = static_cast<int64_t>(QueryOf({row.first, row.second}));
    for (size_t j = 0; j < of_row.size(); j += 1 + j / 64) {
      double sum = 0;
      double size = 0;
      for (int h = 0; h < heads; ++h) {
        double dot = 0;
        double dot_size = 0;
        for (int d = 0; d < kIndexDim; ++d) {
          const double term = static_cast<double>(q[(at * heads + h) * kIndexDim + d]) *
                              keys[j * kIndexDim + d] * scales_[r][j];
          dot += term;
          dot_size += std::abs(term);
        }
        const double weight = weights_[r][at * heads + h];
        sum += std::max(dot, 0.0) * weight;
        size += dot_size * std::abs(weight);
      }
      // Tensor cores keep 13 bits of codes' products below the largest of those that they add at
      // once, and more of others.
      ASSERT_NEAR(of_row[j], sum, size * (codes ? 0x1p-9 : 0x1p-18))
          << "request " << row.first << ", position " << row.second << ", key " << j;
    }
  }
}

TEST_P(IndexScoresTest, KeepBitsInEveryStep) {
  const RowScores all = Run(AllWindows(kQueries), {.score_rows = 64});
  for (const int rows : {1, 2, 3, 4, 5, 8, 31, 32}) {
    ExpectParts(Run(AllWindows(rows), {.padding = rows % 3}), all, "windows");
  }
  for (const int page : {8, 16, 32, 128, 256}) {
    ExpectParts(Run(AllWindows(2), {.page_size = page, .gap = 72}), all, "pages");
  }
  for (int r = 0; r < static_cast<int>(kLengths.size()); ++r) {
    const int length = kLengths[static_cast<size_t>(r)];
    if ((length - 3) / GetParam().ratio <= kTopK) continue;  // sees too little for scores
    ExpectParts(Run({{r, length - kQueries + 7, length - 3}}, {.page_size = 16}), all, "alone");
  }
  ExpectParts(Run(AllWindows(4), {.score_rows = 4096, .padding = 5, .graph = true}), all, "graph");
}

TEST_P(IndexScoresTest, SmallForTheSanitizers) {
  const RowScores two = Run({{0, 1498, 1500}, {2, 250, 257}}, {.page_size = 16, .padding = 1});
  ExpectParts(Run({{0, 1499, 1500}}, {}), two, "one row");
}

INSTANTIATE_TEST_SUITE_P(Hopper, IndexScoresTest,
                         ::testing::Values(ScoresShape{64, 1}, ScoresShape{32, 1},
                                           ScoresShape{64, 4}, ScoresShape{16, 1},
                                           ScoresShape{8, 1}, ScoresShape{64, 1, true},
                                           ScoresShape{32, 1, true}, ScoresShape{16, 4, true},
                                           ScoresShape{8, 1, true}),
                         [](const ::testing::TestParamInfo<ScoresShape>& shape) {
                           return "heads" + std::to_string(shape.param.heads) + "ratio" +
                                  std::to_string(shape.param.ratio) +
                                  (shape.param.codes ? "codes" : "");
                         });

class SparseRowsTest : public HopperTest<> {};

TEST_F(SparseRowsTest, SaysWhatRowsSee) {
  // A request without rows, rows that see nothing, rows across the stripes of the plan's block.
  const std::vector<Window> windows = {{0, 0, 3},     {1, 9, 9},    {2, 5000, 5033},
                                       {3, 100, 101}, {4, 0, 2500}, {5, 47, 50}};
  const DeviceRows rows(windows, {.ratio = 4, .top_k = 12, .index_heads = 64, .score_rows = 32}, 9);
  rows.Plan(nullptr);
  const auto count = static_cast<size_t>(rows.num_rows());
  const std::vector<int> visible = DownloadFrom(rows.rows().visible, count);
  const std::vector<int> counts = DownloadFrom(rows.rows().counts, count);
  const std::vector<int> request = DownloadFrom(rows.rows().request, count);
  const std::vector<int> tile_rows = DownloadFrom(rows.rows().tile_rows, count);
  const std::vector<int> items = DownloadFrom(rows.rows().score_items, count + 1);
  const int piece = DownloadFrom(rows.rows().score_piece, 1)[0];
  const std::vector<SparseRow> step = RowsOf(windows);
  size_t next_tile = 0;
  for (size_t i = 0; i < count; ++i) {
    const int seen = i < step.size() ? (step[i].position + 1) / 4 : 0;
    ASSERT_EQ(visible[i], seen) << "row " << i;
    ASSERT_EQ(counts[i], std::min(seen, 12)) << "row " << i;
    if (i >= step.size()) {
      ASSERT_EQ(tile_rows[i], 0);
      continue;
    }
    ASSERT_EQ(request[i], step[i].request) << "row " << i;
    ASSERT_EQ(tile_rows[i] > 0, i == next_tile) << "row " << i;
    if (i != next_tile) continue;
    next_tile += static_cast<size_t>(tile_rows[i]);
    ASSERT_LE(tile_rows[i], 4);
    ASSERT_LE(next_tile, step.size());
    ASSERT_EQ(request[next_tile - 1], request[i]);
    ASSERT_EQ(i / 32, (next_tile - 1) / 32) << "rows of two chunks are scored together";
    const int last = visible[next_tile - 1];
    const int pieces = last <= 12 ? 0 : (last + piece - 1) / piece;
    ASSERT_EQ(items[i + 1] - items[i], pieces) << "row " << i;
  }
  EXPECT_EQ(next_tile, step.size());
}

TEST_F(SparseRowsTest, RefusesWhatItCannotPlan) {
  const DeviceRows rows({{0, 0, 3}}, {});
  SparseRowsParams params = {.num_rows = 3, .num_requests = 1, .top_k = 5, .index_heads = 64};
  params.index_heads = 48;
  EXPECT_THROW(PlanSparseRows(params, rows.rows(), nullptr), Error);
  params.index_heads = 64;
  params.score_rows = 40;
  EXPECT_THROW(PlanSparseRows(params, rows.rows(), nullptr), Error);
  params.score_rows = 32;
  params.top_k = 0;
  EXPECT_THROW(PlanSparseRows(params, rows.rows(), nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
