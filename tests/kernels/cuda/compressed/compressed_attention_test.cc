// Attention over a window and compressed entries against double precision, and the equality of a
// row's bits in every step. Needs a GPU of compute capability 9.0. Long because it has its own
// reference.
#include "outrider/kernels/cuda/compressed/compressed_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/compressed/device_compressed_rows.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/attended_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kDim = 512;
constexpr int kHalf = 32;  // pairs that are rotated
constexpr int kWindow = 128;
constexpr float kScale = 0.0442F;

struct CompressedRun {
  int page_size = 64;   // of the window's rows
  int entry_page = 16;  // of entries
  int gap = 0;          // numbers behind a page, a multiple of 64
  int padding = 0;
  int chunk = 4096;  // rows of a call
  int replays = 0;   // of a graph; 0: launched
  bool rotates = true;
  bool codes = false;  // keys are e4m3; their numbers must have been rounded to them
};

struct CompressedShape {
  const char* name;
  int heads;
  int ratio;  // 0: no entries
  int top_k;  // 0: all
  bool in_blocks = false;
};

/// Requests whose rows read a window and entries, NaN in whatever no row reads.
class CompressedWorld {
 public:
  CompressedWorld(const CompressedShape& shape, std::vector<int> lengths, int rows, int seed,
                  float size = 1.0F)
      : shape_(shape),
        lengths_(std::move(lengths)),
        random_(seed),
        window_(random_, lengths_, kDim, size),
        entries_(random_, EntryCounts(), kDim, size) {
    for (size_t r = 0; r < lengths_.size(); ++r) {
      const int request = static_cast<int>(r);
      std::vector<bool> used_rows(static_cast<size_t>(lengths_[r]));
      std::vector<bool> used(static_cast<size_t>(entries_.count(request)));
      for (int p = std::max(0, lengths_[r] - rows); p < lengths_[r]; ++p) {
        Row& row = rows_[{request, p}];
        row.q = NormalBf16(random_, size_t{1} * shape.heads * kDim, 1.0F);
        for (int i = 0; i < kHalf; ++i) {
          const float angle = static_cast<float>(random_() % 1000) / 100;
          row.cos.push_back(std::cos(angle));
          row.sin.push_back(std::sin(angle));
        }
        const int visible = shape.ratio > 0 ? (p + 1) / shape.ratio : 0;
        std::vector<int32_t> all(static_cast<size_t>(visible));
        std::iota(all.begin(), all.end(), 0);
        if (shape.top_k > 0) {
          std::shuffle(all.begin(), all.end(), random_);
          all.resize(std::min<size_t>(all.size(), static_cast<size_t>(shape.top_k)));
          std::sort(all.begin(), all.end());
        }
        for (const int32_t i : all) used[static_cast<size_t>(i)] = true;
        row.list = std::move(all);
      }
      const int first = std::max(0, lengths_[r] - rows);
      const int from = std::max(0, first - kWindow + (shape.in_blocks ? 0 : 1));
      std::fill(used_rows.begin() + from, used_rows.end(), true);
      HideUnused(window_.of(request), used_rows);
      HideUnused(entries_.of(request), used);
    }
    sink_ = NormalFloats(random_, static_cast<size_t>(shape.heads), 2.0F);
  }

  void RoundToCodes() {
    window_.RoundToCodes();
    entries_.RoundToCodes();
  }

  std::vector<Window> AllWindows(int rows) const { return LastWindows(lengths_, rows); }

  AttendedRows Run(const std::vector<Window>& windows, const CompressedRun& run, bool sink = true) {
    const std::vector<SparseRow> step = RowsOf(windows);
    const size_t all_rows = step.size() + static_cast<size_t>(run.padding);
    std::vector<uint16_t> q;
    std::vector<float> cos;
    std::vector<float> sin;
    const int64_t stride = shape_.top_k + 4;
    std::vector<int32_t> lists(all_rows * stride, -1);  // behind a list: no entry
    for (size_t i = 0; i < step.size(); ++i) {
      const Row& row = rows_.at({step[i].request, step[i].position});
      q.insert(q.end(), row.q.begin(), row.q.end());
      cos.insert(cos.end(), row.cos.begin(), row.cos.end());
      sin.insert(sin.end(), row.sin.begin(), row.sin.end());
      if (shape_.top_k > 0) {
        std::copy(row.list.begin(), row.list.end(),
                  lists.begin() + static_cast<int64_t>(i) * stride);
      }
    }
    q.resize(all_rows * shape_.heads * kDim, 0xFFFF);
    cos.resize(all_rows * kHalf, NAN);
    sin.resize(all_rows * kHalf, NAN);
    const DeviceArray<uint16_t> d_q(q);
    const DeviceArray<float> d_cos(cos), d_sin(sin), d_sink(sink_);
    const DeviceArray<int32_t> d_lists(lists);
    const DevicePages window(random_, run.codes ? window_.AsCodes() : window_, windows,
                             run.page_size, run.gap);
    const DevicePages entries(random_, run.codes ? entries_.AsCodes() : entries_, windows,
                              run.entry_page, run.gap);
    const DeviceCompressedRows rows(windows,
                                    {.window = kWindow,
                                     .in_blocks = shape_.in_blocks,
                                     .ratio = shape_.ratio,
                                     .top_k = shape_.top_k},
                                    run.padding);
    const DeviceArray<uint16_t> output(all_rows * shape_.heads * kDim);
    const DeviceArray<float> lse(all_rows * shape_.heads);
    const int most = *std::max_element(lengths_.begin(), lengths_.end());
    const ListedAttentionLimits limits = {
        .max_rows = static_cast<int>(std::min<size_t>(all_rows, static_cast<size_t>(run.chunk))),
        .max_count = 2 * kWindow + most / std::max(shape_.ratio, 4),
        .heads = shape_.heads};
    const DeviceArray<uint8_t> workspace(CompressedAttentionWorkspaceBytes(limits), 0);
    CompressedAttentionParams params;
    params.heads = shape_.heads;
    params.rows = rows.rows();
    params.codes = run.codes;
    params.window = window.pages();
    if (shape_.ratio > 0) params.entries = entries.pages();
    if (shape_.top_k > 0) params.lists = d_lists.data();
    params.lists_stride = stride;
    params.softmax_scale = kScale;
    if (sink) params.sink = d_sink.data();
    const auto launch = [&](cudaStream_t stream) {
      rows.Plan(stream);
      for (int first = 0; first < rows.num_rows(); first += run.chunk) {
        params.first_row = first;
        params.num_rows = std::min(run.chunk, rows.num_rows() - first);
        const int64_t offset = int64_t{first} * shape_.heads;
        params.q = d_q.data() + offset * kDim;
        params.output = output.data() + offset * kDim;
        params.lse = lse.data() + offset;
        params.cos = run.rotates ? d_cos.data() + int64_t{first} * kHalf : nullptr;
        params.sin = run.rotates ? d_sin.data() + int64_t{first} * kHalf : nullptr;
        CudaOk(CompressedAttentionPlan(params, limits, workspace.data(), stream), "plan");
        // Two layers.
        for (int layer = 0; layer < 2; ++layer) {
          CudaOk(CompressedAttention(params, limits, workspace.data(), stream), "attention");
        }
      }
    };
    RunOnDevice(launch, run.replays);
    return DownloadRows(step, shape_.heads, output, lse);
  }

  /// Some heads of every row. `rows`: of every window, which blocks read.
  void ExpectReference(const AttendedRows& results, int rows, bool sink, bool rotates) {
    ASSERT_FALSE(results.empty());
    int turn = 0;
    for (const auto& result : results) {
      const auto& [request, position] = result.first;
      const Row& row = rows_.at(result.first);
      const std::vector<float> of_window = window_.Floats(request);
      const std::vector<float> of_entries = entries_.Floats(request);
      const int length = lengths_[static_cast<size_t>(request)];
      const int first = std::max(0, length - rows);
      const int own = shape_.in_blocks ? first - 1 : position;
      const int last = shape_.in_blocks ? length - 1 : position;
      std::vector<const float*> keys;
      for (int p = std::max(0, own - kWindow + 1); p <= last; ++p) {
        keys.push_back(of_window.data() + int64_t{p} * kDim);
      }
      for (const int32_t i : row.list) keys.push_back(of_entries.data() + int64_t{i} * kDim);
      const std::vector<float> q = ToFloats(row.q);
      for (int i = 0; i < 2; ++i, turn += 37) {
        const int head = turn % shape_.heads;
        const double of_sink = sink ? sink_[static_cast<size_t>(head)] : -INFINITY;
        double lse = 0;
        std::vector<double> wanted = Attend(q.data() + int64_t{head} * kDim, keys, of_sink, &lse);
        if (rotates) Rotate(row, wanted);
        ExpectHead(result, head, wanted, lse, keys.size());
      }
    }
  }

 private:
  struct Row {
    std::vector<uint16_t> q;
    std::vector<int32_t> list;
    std::vector<float> cos;
    std::vector<float> sin;
  };

  std::vector<int> EntryCounts() const {
    std::vector<int> counts;
    for (const int length : lengths_) {
      counts.push_back(shape_.ratio > 0 ? length / shape_.ratio : 0);
    }
    return counts;
  }

  static void HideUnused(std::vector<uint16_t>& values, const std::vector<bool>& used) {
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) std::fill_n(values.begin() + static_cast<int64_t>(i) * kDim, kDim, 0x7FC0);
    }
  }

  static std::vector<double> Attend(const float* q, const std::vector<const float*>& keys,
                                    double sink, double* lse) {
    std::vector<double> scores;
    double top = -INFINITY;
    for (const float* key : keys) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += double{q[d]} * key[d];
      scores.push_back(dot * kScale);
      top = std::max(top, scores.back());
    }
    std::vector<double> out(kDim);
    double sum = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const double p = std::exp(scores[i] - top);
      sum += p;
      for (int d = 0; d < kDim; ++d) out[static_cast<size_t>(d)] += p * keys[i][d];
    }
    *lse = top + std::log(sum);
    const double all = sum + std::exp(sink - top);
    for (double& value : out) value /= all;
    return out;
  }

  static void Rotate(const Row& row, std::vector<double>& out) {
    for (int i = 0; i < kHalf; ++i) {
      double& a = out[static_cast<size_t>(kDim - 2 * kHalf + 2 * i)];
      double& b = out[static_cast<size_t>(kDim - 2 * kHalf + 2 * i + 1)];
      const double cos = row.cos[static_cast<size_t>(i)];
      const double sin = row.sin[static_cast<size_t>(i)];
      const double rotated = a * cos - b * sin;
      b = a * sin + b * cos;
      a = rotated;
    }
  }

  CompressedShape shape_;
  std::vector<int> lengths_;
  std::mt19937 random_;
  SparseEntries window_;
  SparseEntries entries_;
  std::map<std::pair<int, int>, Row> rows_;
  std::vector<float> sink_;
};

class CompressedAttentionTest : public HopperTest<::testing::TestWithParam<CompressedShape>> {};

// Keys around the ends of windows, of groups, of tiles and splits.
TEST_P(CompressedAttentionTest, MatchesDoublePrecisionAndKeepsBits) {
  CompressedWorld world(GetParam(), {2, 64, 127, 129, 256, 515, 1030, 2049, 4200}, 33, 31);
  const AttendedRows all = world.Run(world.AllWindows(33), {});
  world.ExpectReference(world.Run(world.AllWindows(3), {}), 3, true, true);
  world.ExpectReference(world.Run(world.AllWindows(2), {.rotates = false}, false), 2, false, false);
  for (const int rows : {1, 2, 4, 7, 32}) {
    ExpectParts(world.Run(world.AllWindows(rows), {.padding = rows % 3}), all, "windows");
  }
  for (const int page : {1, 8, 16, 256}) {
    ExpectParts(
        world.Run(world.AllWindows(3), {.page_size = page, .entry_page = 256 / page, .gap = 192}),
        all, "pages");
  }
  for (const Window& window : world.AllWindows(3)) {
    ExpectParts(world.Run({window}, {}), all, "alone");
    ExpectParts(world.Run({{window.request, window.end - 1, window.end}}, {}), all, "one row");
  }
  ExpectParts(world.Run(world.AllWindows(20), {.padding = 2, .chunk = 64}), all, "chunks");
  ExpectParts(world.Run(world.AllWindows(1), {.replays = 5}), all, "graph");
  ExpectParts(world.Run(world.AllWindows(18), {.replays = 5}), all, "graph");
}

// The bits of bf16 keys with the same numbers, so that codes have all that those have.
TEST_P(CompressedAttentionTest, CodesHaveTheBitsOfTheirNumbers) {
  CompressedWorld world(GetParam(), {2, 127, 129, 515, 1030, 2600}, 33, 47);
  world.RoundToCodes();
  const AttendedRows all = world.Run(world.AllWindows(33), {});
  ExpectParts(world.Run(world.AllWindows(33), {.codes = true}), all, "all");
  world.ExpectReference(world.Run(world.AllWindows(2), {.codes = true}), 2, true, true);
  for (const int page : {1, 8, 16, 256}) {
    ExpectParts(
        world.Run(
            world.AllWindows(3),
            {.page_size = page, .entry_page = 256 / page, .gap = 192, .padding = 1, .codes = true}),
        all, "pages");
  }
  ExpectParts(world.Run(world.AllWindows(4), {.replays = 5, .codes = true}), all, "graph");
}

INSTANTIATE_TEST_SUITE_P(Hopper, CompressedAttentionTest,
                         ::testing::Values(CompressedShape{"flash_ratio_4", 64, 4, 512},
                                           CompressedShape{"pro_ratio_4", 128, 4, 1024},
                                           CompressedShape{"flash_ratio_128", 64, 128, 0},
                                           CompressedShape{"pro_ratio_128", 128, 128, 0},
                                           CompressedShape{"window", 64, 0, 0},
                                           CompressedShape{"all_of_ratio_4", 8, 4, 0},
                                           CompressedShape{"tiny", 8, 4, 64}),
                         [](const auto& test) { return std::string(test.param.name); });

class CompressedAttentionCases : public HopperTest<> {};

// Rows of a block read each other, and the window before the first of them. So a row's keys are the
// same in every step that has the whole block.
TEST_F(CompressedAttentionCases, RowsOfABlockReadEachOther) {
  constexpr int kBlock = 7;
  CompressedWorld world({"blocks", 64, 0, 0, /*in_blocks=*/true}, {7, 60, 134, 135, 136, 700},
                        kBlock, 33);
  const AttendedRows all = world.Run(world.AllWindows(kBlock), {});
  world.ExpectReference(all, kBlock, true, true);
  for (const Window& window : world.AllWindows(kBlock)) {
    ExpectParts(world.Run({window}, {.page_size = 16, .padding = 2}), all, "alone");
  }
  ExpectParts(world.Run(world.AllWindows(kBlock), {.replays = 3}), all, "graph");
}

// A warp plans several rows then, of which one or all are cut.
TEST_F(CompressedAttentionCases, LongRowsBesideManyShortOnes) {
  for (const int heads : {8, 128}) {
    CompressedWorld world({"long", heads, 4, 0}, {20000, 3, 40, 70, 90, 130, 9000}, 40, 37);
    const AttendedRows all = world.Run(world.AllWindows(40), {});
    ExpectParts(world.Run(world.AllWindows(3), {}), all, "windows");
    ExpectParts(world.Run(world.AllWindows(33), {.padding = 5, .replays = 3}), all, "graph");
    for (const Window& window : world.AllWindows(2)) {
      ExpectParts(world.Run({window}, {}), all, "alone");
    }
  }
}

TEST_F(CompressedAttentionCases, KeepsBitsWhenMaximaGrow) {
  // Scores of very different sizes: references move in most tiles.
  CompressedWorld world({"", 64, 4, 512}, {700, 1500, 1100}, 9, 37, 4.0F);
  const AttendedRows all = world.Run(world.AllWindows(9), {});
  for (const auto& [at, row] : all) {
    for (const uint16_t value : row.output) ASSERT_FALSE(std::isnan(Bf16ToFloat(value)));
  }
  ExpectParts(world.Run(world.AllWindows(1), {}), all, "one row");
  ExpectParts(world.Run({{1, 1493, 1499}}, {.page_size = 16}), all, "alone");
}

TEST_F(CompressedAttentionCases, KeepsBitsInManyRepetitions) {
  CompressedWorld world({"", 128, 4, 1024}, {3000, 2500, 700}, 8, 41);
  const AttendedRows all = world.Run(world.AllWindows(8), {});
  for (int i = 0; i < 10; ++i) {
    ExpectParts(world.Run(world.AllWindows(1 + i % 8), {.replays = 20}), all, "repetition");
  }
}

TEST_F(CompressedAttentionCases, SmallForTheSanitizers) {
  CompressedWorld world({"", 16, 4, 128}, {3, 70, 600, 900}, 3, 43);
  const AttendedRows all = world.Run(world.AllWindows(3), {.padding = 1});
  ExpectParts(world.Run(world.AllWindows(1), {.page_size = 16}), all, "one row");
  world.RoundToCodes();
  const AttendedRows rounded = world.Run(world.AllWindows(3), {});
  ExpectParts(world.Run(world.AllWindows(1), {.codes = true}), rounded, "codes");
}

TEST(CompressedAttentionArguments, AreRefused) {
  const ListedAttentionLimits limits = {.max_rows = 4, .max_count = 64, .heads = 16};
  CompressedAttentionParams params = {.num_rows = 5, .heads = 16};
  params.window = {.num_pages = 1, .page_size = 16, .page_stride = 16 * 1024};
  EXPECT_EQ(CompressedAttentionPlan(params, limits, &params, nullptr), cudaErrorInvalidValue);
  params.num_rows = 4;
  params.heads = 8;
  EXPECT_EQ(CompressedAttention(params, limits, &params, nullptr), cudaErrorInvalidValue);
  params.heads = 16;
  params.window.page_size = 24;
  EXPECT_EQ(CompressedAttention(params, limits, &params, nullptr), cudaErrorInvalidValue);
  params.window.page_size = 16;
  params.window.page_stride += 64;
  EXPECT_EQ(CompressedAttention(params, limits, &params, nullptr), cudaErrorInvalidValue);
  EXPECT_THROW(static_cast<void>(PlanCompressedRows({.num_rows = -1}, {}, nullptr)), Error);
  EXPECT_THROW(static_cast<void>(PlanCompressedRows({.window = -1}, {}, nullptr)), Error);
  EXPECT_THROW(static_cast<void>(PlanCompressedRows({.in_blocks = true, .ratio = 4}, {}, nullptr)),
               Error);
}

}  // namespace
}  // namespace outrider::cuda
