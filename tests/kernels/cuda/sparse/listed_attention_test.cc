// Attention over listed entries against double precision, and the equality of a row's bits in every
// step. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sparse/listed_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/attended_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kKey = 576;
constexpr int kValue = 512;
constexpr float kScale = 0.0625F;

struct ListedRun {
  int page_size = 64;
  int gap = 0;
  int padding = 0;
  int chunk = 4096;    // rows of a call
  int replays = 0;     // of a graph; 0: launched
  bool codes = false;  // entries are e4m3; their numbers must have been rounded to them
};

/// Requests whose rows have lists of random entries among those that they see, and NaN in all
/// entries that no list has.
class ListedWorld {
 public:
  /// `top_k`: of the lists.
  ListedWorld(int heads, int top_k, std::vector<int> lengths, int rows, int seed, float size = 1.0F)
      : heads_(heads),
        top_k_(top_k),
        lengths_(std::move(lengths)),
        random_(seed),
        entries_(random_, lengths_, kKey, size) {
    for (size_t r = 0; r < lengths_.size(); ++r) {
      std::vector<bool> used(static_cast<size_t>(lengths_[r]));
      for (int p = std::max(0, lengths_[r] - rows); p < lengths_[r]; ++p) {
        Row& row = rows_[{static_cast<int>(r), p}];
        row.q = NormalBf16(random_, size_t{1} * heads * kKey, 1.0F);
        // Chooses among the entries before p; rows of a request have many in common.
        std::vector<int32_t> all(static_cast<size_t>(p + 1));
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), random_);
        all.resize(std::min<size_t>(all.size(), static_cast<size_t>(top_k)));
        std::sort(all.begin(), all.end());
        for (const int32_t i : all) used[static_cast<size_t>(i)] = true;
        row.list = std::move(all);
      }
      std::vector<uint16_t>& values = entries_.of(static_cast<int>(r));
      for (size_t i = 0; i < used.size(); ++i) {
        if (!used[i]) std::fill_n(values.begin() + static_cast<int64_t>(i) * kKey, kKey, 0x7FC0);
      }
    }
    sink_ = NormalFloats(random_, static_cast<size_t>(heads), 2.0F);
  }

  void RoundToCodes() { entries_.RoundToCodes(); }
  /// Number i of entry j is that of code i + j, one after another but for the codes of NaN.
  void FillWithCodes() {
    for (size_t r = 0; r < lengths_.size(); ++r) {
      std::vector<uint16_t>& values = entries_.of(static_cast<int>(r));
      for (size_t i = 0; i < values.size(); ++i) {
        const auto code = static_cast<uint8_t>(i / kKey + i % kKey);
        values[i] = (code & 0x7F) == 0x7F ? 0 : ToBFloat16(Float8E4M3ToFloat(code)).bits;
      }
    }
  }

  std::vector<Window> AllWindows(int rows) const { return LastWindows(lengths_, rows); }

  AttendedRows Run(const std::vector<Window>& windows, const ListedRun& run, bool sink = false) {
    const std::vector<SparseRow> step = RowsOf(windows);
    const size_t all_rows = step.size() + static_cast<size_t>(run.padding);
    std::vector<uint16_t> q;
    const int64_t stride = top_k_ + 4;
    std::vector<int32_t> lists(all_rows * stride, -1);  // behind a list: no entry
    for (size_t i = 0; i < step.size(); ++i) {
      const Row& row = rows_.at({step[i].request, step[i].position});
      q.insert(q.end(), row.q.begin(), row.q.end());
      std::copy(row.list.begin(), row.list.end(), lists.begin() + static_cast<int64_t>(i) * stride);
    }
    q.resize(all_rows * heads_ * kKey, 0xFFFF);
    const DeviceArray<uint16_t> d_q(q);
    const DeviceArray<int32_t> d_lists(lists);
    const DeviceArray<float> d_sink(sink_);
    const DevicePages pages(random_, run.codes ? entries_.AsCodes() : entries_, windows,
                            run.page_size, run.gap);
    const DeviceRows rows(windows, {.top_k = top_k_, .index_heads = 64}, run.padding);
    const DeviceArray<uint16_t> output(all_rows * heads_ * kValue);
    const DeviceArray<float> lse(all_rows * heads_);
    const ListedAttentionLimits limits = {
        .max_rows = static_cast<int>(std::min<size_t>(all_rows, static_cast<size_t>(run.chunk))),
        .max_count = top_k_,
        .heads = heads_};
    const DeviceArray<uint8_t> workspace(ListedAttentionWorkspaceBytes(limits), 0);
    ListedAttentionParams params;
    params.heads = heads_;
    params.rows = rows.rows();
    params.lists = d_lists.data();
    params.lists_stride = stride;
    params.entries = pages.pages();
    params.entry_type = run.codes ? MlaCacheType::kE4m3 : MlaCacheType::kBf16;
    params.softmax_scale = kScale;
    if (sink) params.sink = d_sink.data();
    const auto launch = [&](cudaStream_t stream) {
      rows.Plan(stream);
      for (int first = 0; first < rows.num_rows(); first += run.chunk) {
        params.first_row = first;
        params.num_rows = std::min(run.chunk, rows.num_rows() - first);
        params.q = d_q.data() + int64_t{first} * heads_ * kKey;
        params.output = output.data() + int64_t{first} * heads_ * kValue;
        params.lse = lse.data() + int64_t{first} * heads_;
        CudaOk(ListedAttentionPlan(params, limits, workspace.data(), stream), "plan");
        // Two layers.
        for (int layer = 0; layer < 2; ++layer) {
          CudaOk(ListedAttention(params, limits, workspace.data(), stream), "ListedAttention");
        }
      }
    };
    RunOnDevice(launch, run.replays);
    return DownloadRows(step, heads_, output, lse);
  }

  /// Some heads of every row.
  void ExpectReference(const AttendedRows& results, bool sink) {
    ASSERT_FALSE(results.empty());
    std::vector<std::vector<float>> entries;
    for (size_t r = 0; r < lengths_.size(); ++r) {
      entries.push_back(entries_.Floats(static_cast<int>(r)));
    }
    int turn = 0;
    for (const auto& result : results) {
      const auto& [request, position] = result.first;
      const Row& row = rows_.at(result.first);
      const std::vector<float> q = ToFloats(row.q);
      for (int i = 0; i < 2; ++i, turn += 37) {
        const int head = turn % heads_;
        const auto key = [&](int j) {
          return entries[static_cast<size_t>(request)].data() +
                 int64_t{row.list[static_cast<size_t>(j)]} * kKey;
        };
        const MlaReferenceRow wanted = ReferenceMlaRow(
            q.data() + int64_t{head} * kKey, static_cast<int>(row.list.size()), kScale,
            sink ? sink_[static_cast<size_t>(head)] : NAN, key, [](int) { return true; });
        ExpectHead(result, head, wanted.output, wanted.lse, row.list.size());
      }
    }
  }

 private:
  struct Row {
    std::vector<uint16_t> q;
    std::vector<int32_t> list;
  };
  int heads_;
  int top_k_;
  std::vector<int> lengths_;
  std::mt19937 random_;
  SparseEntries entries_;
  std::map<std::pair<int, int>, Row> rows_;
  std::vector<float> sink_;
};

class ListedAttentionTest : public HopperTest<::testing::TestWithParam<int>> {};

TEST_P(ListedAttentionTest, MatchesDoublePrecisionAndKeepsBits) {
  const int heads = GetParam();
  // Lists around the ends of tiles and splits, and of the whole top_k.
  ListedWorld world(heads, 2048, {2, 64, 65, 256, 258, 513, 2047, 2050, 3000, 5000}, 33, 31);
  const AttendedRows all = world.Run(world.AllWindows(33), {});
  world.ExpectReference(world.Run(world.AllWindows(2), {}), false);
  world.ExpectReference(world.Run(world.AllWindows(2), {}, true), true);
  for (const int rows : {1, 2, 4, 7, 32}) {
    ExpectParts(world.Run(world.AllWindows(rows), {.padding = rows % 3}), all, "windows");
  }
  for (const int page : {1, 8, 16, 256}) {
    ExpectParts(world.Run(world.AllWindows(3), {.page_size = page, .gap = 160}), all, "pages");
  }
  for (const Window& window : world.AllWindows(3)) {
    ExpectParts(world.Run({window}, {}), all, "alone");
    ExpectParts(world.Run({{window.request, window.end - 1, window.end}}, {}), all, "one row");
  }
  ExpectParts(world.Run(world.AllWindows(20), {.padding = 2, .chunk = 64}), all, "chunks");
  ExpectParts(world.Run(world.AllWindows(1), {.replays = 5}), all, "graph");
  ExpectParts(world.Run(world.AllWindows(18), {.replays = 5}), all, "graph");
}

// The bits of bf16 entries with the same numbers, so that codes have all that those have.
TEST_P(ListedAttentionTest, CodesHaveTheBitsOfTheirNumbers) {
  const int heads = GetParam();
  ListedWorld world(heads, 2048, {2, 64, 65, 256, 258, 513, 2047, 2050, 3000, 5000}, 33, 53, 2.0F);
  world.RoundToCodes();
  const AttendedRows all = world.Run(world.AllWindows(33), {});
  ExpectParts(world.Run(world.AllWindows(33), {.codes = true}), all, "all");
  world.ExpectReference(world.Run(world.AllWindows(2), {.codes = true}, true), true);
  for (int rows = 1; rows <= 32; rows += rows < 8 ? 1 : 8) {
    ExpectParts(world.Run(world.AllWindows(rows), {.padding = rows % 3, .codes = true}), all,
                "windows");
  }
  for (const int page : {1, 8, 16, 32, 256}) {
    ExpectParts(world.Run(world.AllWindows(3), {.page_size = page, .gap = 160, .codes = true}), all,
                "pages");
  }
  for (const Window& window : world.AllWindows(3)) {
    ExpectParts(world.Run({window}, {.codes = true}), all, "alone");
    ExpectParts(world.Run({{window.request, window.end - 1, window.end}}, {.codes = true}), all,
                "one row");
  }
  ExpectParts(world.Run(world.AllWindows(20), {.padding = 2, .chunk = 64, .codes = true}), all,
              "chunks");
  for (int i = 1; i <= 10; ++i) {
    ExpectParts(world.Run(world.AllWindows(3 * i), {.replays = 20, .codes = true}), all, "graph");
  }
}

/// Every code that is a number, at every place of an entry.
TEST_P(ListedAttentionTest, EveryCodeIsItsNumber) {
  ListedWorld world(GetParam(), 512, {600, 512}, 2, 59);
  world.FillWithCodes();
  const AttendedRows all = world.Run(world.AllWindows(2), {});
  ExpectParts(world.Run(world.AllWindows(2), {.codes = true}), all, "codes");
}

INSTANTIATE_TEST_SUITE_P(Hopper, ListedAttentionTest, ::testing::Values(128, 64, 16, 5),
                         [](const ::testing::TestParamInfo<int>& heads) {
                           return "heads" + std::to_string(heads.param);
                         });

class ListedAttentionCases : public HopperTest<> {};

TEST_F(ListedAttentionCases, KeepsBitsWhenMaximaGrow) {
  // Scores of very different sizes: references move in most tiles.
  ListedWorld world(64, 1024, {700, 1500, 1100}, 9, 37, 4.0F);
  const AttendedRows all = world.Run(world.AllWindows(9), {});
  for (const auto& [at, row] : all) {
    for (const uint16_t value : row.output) ASSERT_FALSE(std::isnan(Bf16ToFloat(value)));
  }
  ExpectParts(world.Run(world.AllWindows(1), {}), all, "one row");
  ExpectParts(world.Run({{1, 1493, 1499}}, {.page_size = 16}), all, "alone");
}

TEST_F(ListedAttentionCases, KeepsBitsInManyRepetitions) {
  ListedWorld world(128, 2048, {3000, 2500, 700}, 8, 41);
  const AttendedRows all = world.Run(world.AllWindows(8), {});
  for (int i = 0; i < 10; ++i) {
    ExpectParts(world.Run(world.AllWindows(1 + i % 8), {.replays = 20}), all, "repetition");
  }
}

TEST_F(ListedAttentionCases, BlocksTakeManyItemsOfOneTile) {
  // 1,000 rows with lists of up to 64: a block takes 8 items or more, each of them a tile, so that
  // every slot of items is used again, in another order in every run.
  std::vector<int> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back(30 + 7 * i);
  ListedWorld world(16, 64, lengths, 33, 67);
  world.RoundToCodes();
  const AttendedRows all = world.Run(world.AllWindows(33), {});
  world.ExpectReference(all, false);
  for (const bool codes : {false, true}) {
    for (const int rows : {1, 17, 33}) {
      ExpectParts(world.Run(world.AllWindows(rows), {.replays = 20, .codes = codes}), all,
                  "repetition");
    }
  }
}

TEST_F(ListedAttentionCases, SmallForTheSanitizers) {
  ListedWorld world(16, 512, {3, 70, 600, 900}, 3, 43);
  const AttendedRows all = world.Run(world.AllWindows(3), {.padding = 1});
  ExpectParts(world.Run(world.AllWindows(1), {.page_size = 16}), all, "one row");
}

TEST_F(ListedAttentionCases, SmallOfCodesForTheSanitizers) {
  ListedWorld world(16, 512, {3, 70, 600, 900}, 3, 47);
  world.RoundToCodes();
  const AttendedRows all = world.Run(world.AllWindows(3), {.padding = 1, .codes = true});
  ExpectParts(world.Run(world.AllWindows(1), {.page_size = 16, .codes = true}), all, "one row");
}

TEST_F(ListedAttentionCases, RefusesWhatItCannotRun) {
  const ListedAttentionLimits limits = {.max_rows = 4, .max_count = 64, .heads = 16};
  ListedAttentionParams params = {.num_rows = 5, .heads = 16};
  params.entries = {.num_pages = 1, .page_size = 16, .page_stride = 16 * 1152};
  EXPECT_EQ(ListedAttentionPlan(params, limits, &params, nullptr), cudaErrorInvalidValue);
  params.num_rows = 4;
  params.heads = 8;
  EXPECT_EQ(ListedAttention(params, limits, &params, nullptr), cudaErrorInvalidValue);
  params.heads = 16;
  params.entries.page_size = 24;
  EXPECT_EQ(ListedAttention(params, limits, &params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace outrider::cuda
