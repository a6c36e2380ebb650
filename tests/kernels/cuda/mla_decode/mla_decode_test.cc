// The Hopper MLA decode kernel against a double-precision reference, and the equality of a row's
// bits over windows, batches, runs and graph replays. Needs a GPU of compute capability 9.0. Long
// because all of it is one list of cases of one operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <tuple>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_world.h"

namespace outrider::cuda {
namespace {

class MlaDecodeTest : public HopperTest<> {
 protected:
  /// Compares some rows of a batch with the reference, which is slow: on all processors.
  static void CheckBatch(const MlaWorld& world, const std::vector<BatchRequest>& batch,
                         const BatchResult& result,
                         const std::vector<std::vector<uint32_t>>& masks = {}) {
    struct Row {
      size_t request;
      int token;
      int head;
      double output = 0;
      double lse = 0;
    };
    std::vector<Row> rows;
    const int heads = world.options().heads;
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].query_len; ++t) {
        const bool edge = t == 0 || t == batch[i].query_len - 1;
        if (!edge && (t + static_cast<int>(i)) % 5 != 0) continue;
        for (int head : {0, heads / 2, heads - 1}) rows.push_back({i, t, head});
      }
    }
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t n = next++; n < rows.size(); n = next++) {
        Row& row = rows[n];
        std::tie(row.output, row.lse) =
            world.Error(batch[row.request], row.token, row.head, result[row.request][row.token],
                        masks.empty() ? nullptr : &masks[row.request][row.token]);
      }
    };
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
      work();
    }
    double worst = 0;
    for (const Row& row : rows) {
      const BatchRequest& request = batch[row.request];
      worst = std::max(worst, row.output);
      ASSERT_LT(row.output, 8e-3) << "request " << row.request << " length " << request.seq_len
                                  << " window " << request.query_len << " token " << row.token
                                  << " head " << row.head;
      ASSERT_LT(row.lse, 1e-3) << "request " << row.request << " length " << request.seq_len
                               << " window " << request.query_len << " token " << row.token
                               << " head " << row.head;
    }
    RecordProperty("worst_relative_error", std::to_string(worst));
  }

  static int Windows(int length, int wanted) { return std::min(length, wanted); }
};

const std::vector<int> kEdgeLengths = {1,   2,   15,  16,  17,  31,   33,   63,   64,   65,   127,
                                       128, 129, 191, 255, 256, 257,  511,  512,  513,  1023, 1025,
                                       640, 700, 960, 300, 77,  2047, 2049, 4095, 4097, 4353};

struct Shape {
  int heads;
  int page_size;
  MlaCacheType type;
};

std::string ShapeName(const ::testing::TestParamInfo<Shape>& shape) {
  return "heads" + std::to_string(shape.param.heads) + "page" +
         std::to_string(shape.param.page_size) +
         (shape.param.type == MlaCacheType::kE4m3 ? "e4m3" : "bf16");
}

class MlaDecodeShapes : public MlaDecodeTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(MlaDecodeShapes, MatchesReferenceOnMixedWindows) {
  WorldOptions options;
  options.heads = GetParam().heads;
  options.page_size = GetParam().page_size;
  options.cache_type = GetParam().type;
  options.lengths = kEdgeLengths;
  options.seed = 7 + options.heads + options.page_size;
  MlaWorld world(options);
  std::mt19937 random(5);
  std::vector<BatchRequest> batch;
  batch.reserve(256);
  for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
    batch.push_back(
        {i, options.lengths[i], Windows(options.lengths[i], 1 + static_cast<int>(random() % 32))});
    if (i % 7 == 3) batch.push_back({i, options.lengths[i], 0});  // takes part with no token
  }
  CheckBatch(world, batch, world.Run(batch));
  CheckBatch(world, batch, world.Run(batch, /*relaxed=*/true));
  std::vector<BatchRequest> single;
  single.reserve(options.lengths.size());
  for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
    single.push_back({i, options.lengths[i], 1});
  }
  CheckBatch(world, single, world.Run(single));
  CheckBatch(world, {single[27]}, world.Run({single[27]}));
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, MlaDecodeShapes,
    ::testing::Values(Shape{16, 64, MlaCacheType::kBf16}, Shape{8, 16, MlaCacheType::kBf16},
                      Shape{32, 32, MlaCacheType::kBf16}, Shape{64, 256, MlaCacheType::kBf16},
                      Shape{128, 64, MlaCacheType::kBf16}, Shape{24, 64, MlaCacheType::kBf16},
                      Shape{20, 64, MlaCacheType::kBf16}, Shape{1, 32, MlaCacheType::kBf16},
                      Shape{127, 16, MlaCacheType::kBf16}, Shape{16, 64, MlaCacheType::kE4m3},
                      Shape{8, 16, MlaCacheType::kE4m3}, Shape{32, 32, MlaCacheType::kE4m3},
                      Shape{64, 256, MlaCacheType::kE4m3}, Shape{128, 64, MlaCacheType::kE4m3},
                      Shape{24, 64, MlaCacheType::kE4m3}, Shape{20, 64, MlaCacheType::kE4m3},
                      Shape{1, 32, MlaCacheType::kE4m3}, Shape{127, 16, MlaCacheType::kE4m3}),
    ShapeName);

TEST_F(MlaDecodeTest, LongContext) {
  for (MlaCacheType type : {MlaCacheType::kBf16, MlaCacheType::kE4m3}) {
    WorldOptions options;
    options.cache_type = type;
    options.lengths = {131072, 40000, 9001};
    MlaWorld world(options);
    const std::vector<BatchRequest> batch = {{0, 131072, 32}, {1, 40000, 5}, {2, 9001, 1}};
    const BatchResult result = world.Run(batch);
    CheckBatch(world, {{0, 131072, 2}, batch[1], batch[2]},
               {{result[0][30], result[0][31]}, result[1], result[2]});
    // Cut in as many pieces as there are pairs of tiles.
    CheckBatch(world, {batch[2]}, world.Run({batch[2]}, /*relaxed=*/true));
    for (int back : {0, 1, 15, 31}) {
      EXPECT_EQ(world.Run({{0, 131072 - back, 1}})[0][0], result[0][31 - back]) << back;
    }
  }
}

struct HeadsAndType {
  int heads;
  MlaCacheType type;
};

TEST_F(MlaDecodeTest, SinkMasksAndEmptyRequests) {
  for (const auto& [heads, type] :
       {HeadsAndType{16, MlaCacheType::kBf16}, HeadsAndType{128, MlaCacheType::kBf16},
        HeadsAndType{16, MlaCacheType::kE4m3}}) {
    WorldOptions options;
    options.heads = heads;
    options.sink = true;
    options.cache_type = type;
    options.lengths = {40, 100, 257, 640, 1500, 5000};
    MlaWorld world(options);
    std::vector<BatchRequest> batch;
    batch.reserve(256);
    std::vector<std::vector<uint32_t>> masks;
    std::mt19937 random(11);
    for (int i = 0; i < 6; ++i) {
      const int window = 1 + static_cast<int>(random() % 32);
      batch.push_back({i, options.lengths[i], window});
      std::vector<uint32_t> mask;
      mask.reserve(window);
      for (int t = 0; t < window; ++t) mask.push_back(static_cast<uint32_t>(random()) | 1u << t);
      masks.push_back(mask);
    }
    batch.push_back({0, 0, 0});
    masks.emplace_back();
    batch.push_back({0, 0, 1});  // a row without keys
    masks.push_back({1});
    const BatchResult masked = world.Run(batch, false, masks);
    batch.resize(6);
    CheckBatch(world, batch, masked, masks);
    for (uint16_t value : masked[7][0].output) ASSERT_EQ(value, 0);
    ASSERT_EQ(masked[7][0].lse[0], 0xFF800000u);
    CheckBatch(world, batch, world.Run(batch));
    // A masked row's bits are those that it has alone.
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(world.Run({batch[i]}, false, {masks[i]})[0], masked[i]) << "request " << i;
    }
    // A causal mask gives the causal bits.
    for (size_t i = 0; i < 6; ++i) {
      for (int t = 0; t < batch[i].query_len; ++t) masks[i][t] = (2ull << t) - 1;
    }
    masks.resize(6);
    EXPECT_EQ(world.Run(batch, false, masks), world.Run(batch));
  }
}

TEST_F(MlaDecodeTest, BitsDoNotDependOnPageSize) {
  for (MlaCacheType type : {MlaCacheType::kBf16, MlaCacheType::kE4m3}) {
    for (int heads : {8, 16, 24, 32, 64, 128}) {
      WorldOptions options;
      options.heads = heads;
      options.cache_type = type;
      options.sink = true;
      options.lengths = {33, 300, 1040, 4353};
      std::vector<BatchRequest> batch;
      batch.reserve(options.lengths.size());
      std::vector<std::vector<uint32_t>> masks;
      std::mt19937 random(heads);
      for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
        batch.push_back({i, options.lengths[i], 1 + static_cast<int>(random() % 32)});
        std::vector<uint32_t>& mask = masks.emplace_back();
        mask.reserve(batch.back().query_len);
        for (int t = 0; t < batch.back().query_len; ++t) {
          mask.push_back(static_cast<uint32_t>(random()) | 1u << t);
        }
      }
      BatchResult causal, masked;
      for (int page_size : {64, 16, 32, 256}) {
        options.page_size = page_size;
        // Entries of other layers, also of another width: pages are no whole number of entries.
        options.gap = page_size == 64 ? 0 : 2000 * page_size + 16;
        MlaWorld world(options);
        const BatchResult result = world.Run(batch);
        const BatchResult with_masks = world.Run(batch, false, masks);
        if (page_size == 64) {
          causal = result;
          masked = with_masks;
          CheckBatch(world, batch, masked, masks);
        }
        EXPECT_TRUE(result == causal) << "heads " << heads << " page " << page_size;
        EXPECT_TRUE(with_masks == masked) << "heads " << heads << " page " << page_size;
      }
    }
  }
}

// Contexts of 0 keys (a window is all there is), of 1, and around ends of pages and of splits,
// where the size of splits changes too: windows lie on both sides, and each row has the bits that
// it has as a single row.
TEST_F(MlaDecodeTest, ContextsAroundPagesAndSplits) {
  for (MlaCacheType type : {MlaCacheType::kBf16, MlaCacheType::kE4m3}) {
    for (int heads : {16, 128}) {
      WorldOptions options;
      options.heads = heads;
      options.cache_type = type;
      options.page_size = heads == 16 ? 64 : 256;
      options.lengths = {12340};
      MlaWorld world(options);
      const MlaSplits splits = DefaultMlaSplits(heads);
      std::vector<BatchRequest> batch;
      batch.reserve(128);
      for (int window = 1; window <= 32; ++window) batch.push_back({0, window, window});
      std::vector<int> contexts = {1};
      for (int end : {options.page_size, 33 * options.page_size, splits.base, splits.end0,
                      splits.end0 + 2 * splits.base, splits.end1, splits.end1 + 4 * splits.base}) {
        for (int context : {end - 2, end - 1, end, end + 1}) contexts.push_back(context);
      }
      for (int context : contexts) {
        for (int window : {1, 3, 32}) batch.push_back({0, context + window, window});
      }
      const BatchResult result = world.Run(batch);
      std::map<int, RowBits> single;
      for (int back = 0; back < 32; ++back) {
        std::vector<BatchRequest> rows;
        rows.reserve(batch.size());
        for (const BatchRequest& request : batch) {
          const int length = request.seq_len - back;
          if (back < request.query_len && !single.contains(length)) rows.push_back({0, length, 1});
        }
        const BatchResult bits = world.Run(rows);
        for (size_t i = 0; i < rows.size(); ++i) single[rows[i].seq_len] = bits[i][0];
      }
      for (size_t i = 0; i < batch.size(); ++i) {
        for (int t = 0; t < batch[i].query_len; ++t) {
          const int length = batch[i].seq_len - batch[i].query_len + t + 1;
          ASSERT_TRUE(result[i][t] == single[length])
              << heads << " heads, length " << batch[i].seq_len << " window " << batch[i].query_len
              << " token " << t;
        }
      }
      // The other rows have the bits of these.
      std::vector<BatchRequest> rows;
      rows.reserve(batch.size());
      for (const BatchRequest& request : batch) {
        if (request.query_len == 1) rows.push_back(request);
      }
      CheckBatch(world, rows, world.Run(rows));
      CheckBatch(world, {batch.begin(), batch.begin() + 32}, result);
    }
  }
}

// As few keys as sharing takes: what the tools that watch every access can run.
TEST_F(MlaDecodeTest, ShortTilesSharedByTwoItems) {
  for (MlaCacheType type : {MlaCacheType::kBf16, MlaCacheType::kE4m3}) {
    WorldOptions options;
    options.heads = 8;
    options.cache_type = type;
    options.lengths = {520, 577, 640, 513};
    MlaWorld world(options);
    for (int window : {1, 2}) {
      std::vector<BatchRequest> batch;
      batch.reserve(140);
      for (int n = 0; n < 140; ++n) {
        batch.push_back({n % 4, options.lengths[n % 4], n == 70 ? window : 1});
      }
      const BatchResult result = world.Run(batch);
      const BatchResult few = world.Run({batch.begin(), batch.begin() + 4});
      for (size_t n = 0; n < batch.size(); ++n) {
        ASSERT_TRUE(result[n].back() == few[n % 4][0]) << "request " << n;
      }
    }
  }
}

// A few tiles more than there are multiprocessors: many are cut in two, and the second part goes on
// from the result of the first.
TEST_F(MlaDecodeTest, BitsDoNotDependOnTilesSharedByTwoItems) {
  for (int heads : {16, 20, 40, 128}) {
    WorldOptions options;
    options.heads = heads;
    options.sink = true;
    options.lengths = {3000, 3001, 2900, 3100, 2560, 4353};
    const int requests = static_cast<int>(options.lengths.size());
    MlaWorld world(options);
    const BatchResult alone = [&] {
      BatchResult results;
      for (int i = 0; i < requests; ++i) {
        results.push_back(world.Run({{i, options.lengths[i], 9}})[0]);
      }
      return results;
    }();
    for (int count : {heads == 128 ? 70 : 140, heads == 128 ? 100 : 200}) {
      for (int long_windows : {0, 12}) {
        std::vector<BatchRequest> batch;
        batch.reserve(count);
        for (int n = 0; n < count; ++n) {
          const int i = n % requests;
          batch.push_back({i, options.lengths[i], n % 16 < long_windows ? 9 : 1});
        }
        const BatchResult result = world.Run(batch);
        for (int n = 0; n < count; ++n) {
          const int window = batch[n].query_len;
          for (int t = 0; t < window; ++t) {
            ASSERT_TRUE(result[n][t] == alone[n % requests][9 - window + t])
                << heads << " heads, request " << n << " of " << count << ", token " << t << " of "
                << window;
          }
        }
        EXPECT_TRUE(world.Run(batch, false, {}, /*graph=*/true) == result);
        CheckBatch(world, {batch.begin(), batch.begin() + requests},
                   world.Run(batch, /*relaxed=*/true));
      }
    }
  }
}

// Tiles with keys of their own, in two to four uneven pieces or, nearly full and in the way of few
// idle multiprocessors, whole.
TEST_F(MlaDecodeTest, BitsDoNotDependOnUnevenPieces) {
  WorldOptions options;
  options.heads = 16;
  options.sink = true;
  options.lengths = {1028, 1025, 1100, 1153, 4100, 4097, 4353, 4500};
  MlaWorld world(options);
  BatchResult alone;
  for (int i = 0; i < 8; ++i) alone.push_back(world.Run({{i, options.lengths[i], 4}})[0]);
  for (int first : {0, 4}) {  // contexts of about 1024 and of about 4096
    for (int window : {1, 3, 4}) {
      for (int count : {33, 44, 56, 57, 66}) {
        for (int kinds : {4, 8}) {  // alike, and both contexts
          std::vector<BatchRequest> batch;
          batch.reserve(count);
          for (int n = 0; n < count; ++n) {
            const int i = (first + n % kinds) % 8;
            batch.push_back({i, options.lengths[i], window});
          }
          const BatchResult result = world.Run(batch);
          for (int n = 0; n < count; ++n) {
            for (int t = 0; t < window; ++t) {
              ASSERT_TRUE(result[n][t] == alone[batch[n].request][4 - window + t])
                  << "request " << n << " of " << count << ", token " << t << " of " << window;
            }
          }
        }
      }
    }
  }
}

// 364 tiles alike: in whole rounds 32 of 132 multiprocessors have two of them instead of three.
TEST_F(MlaDecodeTest, BitsDoNotDependOnRounds) {
  WorldOptions options;
  options.heads = 128;
  options.sink = true;
  options.lengths = {3000, 3001, 2900, 3100};
  MlaWorld world(options);
  BatchResult alone;
  for (int i = 0; i < 4; ++i) alone.push_back(world.Run({{i, options.lengths[i], 2}})[0]);
  std::vector<BatchRequest> batch;
  batch.reserve(91);
  for (int n = 0; n < 91; ++n) batch.push_back({n % 4, options.lengths[n % 4], 2});
  const BatchResult result = world.Run(batch);
  for (int n = 0; n < 91; ++n) {
    for (int t = 0; t < 2; ++t) {
      ASSERT_TRUE(result[n][t] == alone[n % 4][t]) << "request " << n << ", token " << t;
    }
  }
}

class MlaDecodeBits : public MlaDecodeTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(MlaDecodeBits, DoNotDependOnWindowOrBatch) {
  // Other data for the heads that fill a tile; for all others one kind.
  const bool all_data = GetParam().heads == 16 || GetParam().heads == 128;
  for (WorldData data : {WorldData::kGrowing, WorldData::kNormal, WorldData::kRepeated}) {
    if (data != WorldData::kGrowing && !all_data) break;
    WorldOptions options;
    options.heads = GetParam().heads;
    options.page_size = GetParam().page_size;
    options.cache_type = GetParam().type;
    options.sink = data == WorldData::kGrowing;
    options.data = data;
    options.lengths = {48, 80, 140, 272, 530, 1040, 2060, 4112, 8200, 300, 64, 5000};
    MlaWorld world(options);
    // Every position of the last 32 as a single row, alone in its batch for some, together for all.
    std::map<std::pair<int, int>, RowBits> single;
    for (int back = 0; back < 32; ++back) {
      std::vector<BatchRequest> batch;
      batch.reserve(256);
      for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
        batch.push_back({i, options.lengths[i] - back, 1});
      }
      const BatchResult result = world.Run(batch);
      for (size_t i = 0; i < batch.size(); ++i) {
        single[{static_cast<int>(i), batch[i].seq_len - 1}] = result[i][0];
      }
    }
    int compared = 0;
    auto compare = [&](const std::vector<BatchRequest>& batch) {
      const BatchResult result = world.Run(batch);
      for (size_t i = 0; i < batch.size(); ++i) {
        for (int t = 0; t < batch[i].query_len; ++t) {
          const int position = batch[i].seq_len - batch[i].query_len + t;
          const auto it = single.find({batch[i].request, position});
          if (it == single.end()) continue;
          ++compared;
          ASSERT_TRUE(it->second == result[i][t])
              << "request of length " << options.lengths[batch[i].request] << " window "
              << batch[i].query_len << " token " << t << " of " << batch.size()
              << " requests, data " << static_cast<int>(data);
        }
      }
    };
    for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
      compare({{i, options.lengths[i], 1}});
      compare({{i, options.lengths[i], Windows(options.lengths[i], 32)}});
      if (HasFatalFailure()) return;
    }
    std::mt19937 random(3);
    for (int window = 1; window <= 32; ++window) {
      std::vector<BatchRequest> batch;
      batch.reserve(256);
      for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
        batch.push_back(
            {i, options.lengths[i] - static_cast<int>(random() % (33 - window)), window});
      }
      compare(batch);
      if (HasFatalFailure()) return;
    }
    for (int round = 0; round < 12; ++round) {
      std::vector<BatchRequest> batch;
      batch.reserve(256);
      const int count = 1 + static_cast<int>(random() % 200);
      for (int n = 0; n < count; ++n) {
        const int i = static_cast<int>(random() % options.lengths.size());
        const int window = random() % 4 == 0 ? 1 + static_cast<int>(random() % 32) : 1;
        batch.push_back(
            {i, options.lengths[i] - static_cast<int>(random() % (33 - window)), window});
      }
      compare(batch);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(compared, 2000);
    // Run to run, graph against eager.
    std::vector<BatchRequest> batch;
    batch.reserve(256);
    for (int i = 0; i < static_cast<int>(options.lengths.size()); ++i) {
      batch.push_back({i, options.lengths[i], 1 + i % 8});
    }
    const BatchResult first = world.Run(batch);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(world.Run(batch), first);
    EXPECT_EQ(world.Run(batch, false, {}, /*graph=*/true), first);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, MlaDecodeBits,
    ::testing::Values(Shape{16, 64, MlaCacheType::kBf16}, Shape{128, 64, MlaCacheType::kBf16},
                      Shape{24, 32, MlaCacheType::kBf16}, Shape{32, 256, MlaCacheType::kBf16},
                      Shape{64, 16, MlaCacheType::kBf16}, Shape{8, 16, MlaCacheType::kBf16},
                      Shape{20, 64, MlaCacheType::kBf16}, Shape{5, 64, MlaCacheType::kBf16},
                      Shape{16, 64, MlaCacheType::kE4m3}, Shape{32, 256, MlaCacheType::kE4m3},
                      Shape{64, 32, MlaCacheType::kE4m3}, Shape{128, 64, MlaCacheType::kE4m3},
                      Shape{8, 16, MlaCacheType::kE4m3}, Shape{20, 64, MlaCacheType::kE4m3},
                      Shape{5, 64, MlaCacheType::kE4m3}),
    ShapeName);

TEST(MlaDecodeArguments, AreChecked) {
  MlaDecodeLimits limits = {16, 4, 4096, 16};
  EXPECT_GT(MlaDecodeWorkspaceBytes(limits), 0u);
  MlaDecodeParams params;
  params.heads = 16;
  params.page_size = 48;
  int workspace = 0;
  EXPECT_EQ(MlaDecodePlan(params, limits, &workspace, nullptr), cudaErrorInvalidValue);
  params.page_size = 64;
  params.heads = 12;
  EXPECT_EQ(MlaDecode(params, limits, &workspace, nullptr), cudaErrorInvalidValue);
  for (int heads : {0, 129}) {
    params.heads = limits.heads = heads;
    EXPECT_EQ(MlaDecode(params, limits, &workspace, nullptr), cudaErrorInvalidValue);
  }
  params.heads = limits.heads = 16;
  params.num_requests = 5;
  EXPECT_EQ(MlaDecodePlan(params, limits, &workspace, nullptr), cudaErrorInvalidValue);
  params.num_requests = 0;
  for (const int64_t stride : {64 * 576 * 2 - 16, 64 * 576 * 2 + 8}) {
    params.page_stride = stride;
    EXPECT_EQ(MlaDecodePlan(params, limits, &workspace, nullptr), cudaErrorInvalidValue) << stride;
  }
  params.page_stride = 0;
  for (const MlaSplits& splits :
       {MlaSplits{64, 4096, 8192}, MlaSplits{384, 3840, 7680}, MlaSplits{256, 4224, 8320},
        MlaSplits{256, 4096, 4352}, MlaSplits{256, 4096, 2048}}) {
    params.splits = splits;
    EXPECT_EQ(MlaDecodePlan(params, limits, &workspace, nullptr), cudaErrorInvalidValue)
        << splits.base << " " << splits.end0 << " " << splits.end1;
  }
}

}  // namespace
}  // namespace outrider::cuda
