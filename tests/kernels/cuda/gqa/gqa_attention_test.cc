// Grouped-query attention on a Hopper GPU against double precision, and the equality of a row's
// bits over windows, batches, bodies, block sizes and graph replays.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/kernels/cuda/gqa/gqa_world.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct Case {
  GqaShape shape;
  DType dtype;
  int block_size;
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::to_string(c.shape.heads) + "_" + std::to_string(c.shape.kv_heads) + "_window" +
         std::to_string(c.shape.window) + (c.dtype == DType::kBF16 ? "_bf16" : "_e4m3") + "_block" +
         std::to_string(c.block_size);
}

class GqaAttentionTest : public HopperTest<::testing::TestWithParam<Case>> {
 protected:
  static GqaWorldOptions Options(std::vector<int> lengths, bool growing = false) {
    const Case& c = GetParam();
    return {.shape = c.shape,
            .block_size = c.block_size,
            .dtype = c.dtype,
            .growing = growing,
            .lengths = std::move(lengths)};
  }
  static void CheckRows(const GqaWorld& world, const std::vector<GqaBatchRequest>& batch,
                        const GqaBatchResult& result) {
    const int heads = world.options().shape.heads;
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].query_len; ++t) {
        if (t != 0 && t + 1 != batch[i].query_len && t % 7 != 3) continue;
        for (const int head : {0, heads / 2, heads - 1}) {
          ASSERT_LT(world.Error(batch[i], t, head, result[i][t]), 8e-3)
              << "request " << i << " length " << batch[i].seq_len << " window "
              << batch[i].query_len << " token " << t << " head " << head;
        }
      }
    }
  }
  /// All rows of the batch have the bits that they have alone.
  static void CheckAlone(GqaWorld& world, const std::vector<GqaBatchRequest>& batch,
                         const GqaBatchResult& result, int stride = 1) {
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].query_len; t += stride) {
        const int length = batch[i].seq_len - batch[i].query_len + t + 1;
        const GqaBatchResult alone = world.Run({{batch[i].request, length, 1}});
        ASSERT_EQ(alone[0][0], result[i][t]) << "request " << i << " length " << batch[i].seq_len
                                             << " window " << batch[i].query_len << " token " << t;
      }
    }
  }
};

const std::vector<int> kEdgeLengths = {1,   2,   7,    8,    63,   64,   65,   127,  128, 129,
                                       255, 256, 257,  511,  512,  513,  575,  576,  577, 640,
                                       700, 960, 1023, 1025, 1280, 2049, 4095, 4097, 4700};

TEST_P(GqaAttentionTest, EdgeLengthsAreRight) {
  GqaWorld world(Options(kEdgeLengths));
  std::vector<GqaBatchRequest> batch;
  for (size_t i = 0; i < kEdgeLengths.size(); ++i) {
    batch.push_back({static_cast<int>(i), kEdgeLengths[i],
                     std::min(kEdgeLengths[i], 1 + static_cast<int>(i * 5 % 33))});
  }
  for (const GqaBody body : {GqaBody::kFewRows, GqaBody::kManyRows}) {
    const GqaBatchResult result = world.Run(batch, body);
    CheckRows(world, batch, result);
    CheckAlone(world, batch, result, 5);
  }
}

TEST_P(GqaAttentionTest, GrowingKeysAreRight) {
  GqaWorld world(Options({3000, 900, 70}, /*growing=*/true));
  const std::vector<GqaBatchRequest> batch = {{0, 3000, 9}, {1, 900, 1}, {2, 70, 32}};
  const GqaBatchResult result = world.Run(batch);
  CheckRows(world, batch, result);
  CheckAlone(world, batch, result);
}

TEST_P(GqaAttentionTest, WindowsOfEveryLengthGiveARowTheSameBits) {
  GqaWorld world(Options({1601}));
  for (int query_len = 1; query_len <= 32; ++query_len) {
    const std::vector<GqaBatchRequest> batch = {{0, 1601, query_len}};
    CheckAlone(world, batch, world.Run(batch), 3);
  }
}

TEST_P(GqaAttentionTest, APromptInOnePieceIsThePromptInPieces) {
  GqaWorld world(Options({1100}));
  const std::vector<GqaBatchRequest> whole = {{0, 1100, 1100}};
  const GqaBatchResult expected = world.Run(whole, GqaBody::kManyRows);
  CheckRows(world, whole, expected);
  EXPECT_EQ(world.Run(whole, GqaBody::kFewRows), expected);
  int end = 0;
  for (const int piece : {1, 37, 64, 400, 511, 87}) {
    end += piece;
    const GqaBatchResult part = world.Run({{0, end, piece}}, GqaBody::kManyRows);
    for (int t = 0; t < piece; ++t) {
      ASSERT_EQ(part[0][t], expected[0][end - piece + t])
          << "piece of " << piece << ", token " << t;
    }
  }
  ASSERT_EQ(end, 1100);
}

TEST_P(GqaAttentionTest, RandomBatchesAndReplaysGiveARowTheSameBits) {
  std::vector<int> lengths;
  std::mt19937 random(7);
  for (int i = 0; i < 24; ++i) lengths.push_back(1 + static_cast<int>(random() % 2500));
  GqaWorld world(Options(lengths));
  for (int round = 0; round < 4; ++round) {
    std::vector<GqaBatchRequest> batch;
    const int count = 1 + static_cast<int>(random() % (round == 3 ? 200 : 24));
    for (int i = 0; i < count; ++i) {
      const int request = static_cast<int>(random() % lengths.size());
      const int length = 1 + static_cast<int>(random() % lengths[request]);
      // Zero: a request that a padded step has no rows for.
      const int rows = static_cast<int>(random() % 9);
      batch.push_back({request, length, std::min(length, rows)});
    }
    const GqaBatchResult result = world.Run(batch, GqaBody::kFewRows, /*graph=*/round % 2 == 1);
    EXPECT_EQ(world.Run(batch, GqaBody::kManyRows), result);
    CheckRows(world, batch, result);
    CheckAlone(world, batch, result, 4);
  }
}

TEST_P(GqaAttentionTest, BlockSizesGiveARowTheSameBits) {
  const std::vector<int> lengths = {777, 1500};
  const std::vector<GqaBatchRequest> batch = {{0, 777, 4}, {1, 1500, 3}};
  GqaWorldOptions options = Options(lengths);
  const GqaBatchResult expected = GqaWorld(options).Run(batch);
  for (const int block_size : {8, 16, 48, 64, 192, 256}) {
    options.block_size = block_size;
    EXPECT_EQ(GqaWorld(options).Run(batch), expected) << "blocks of " << block_size;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , GqaAttentionTest,
    ::testing::Values(Case{{64, 8, 0}, DType::kBF16, 192}, Case{{96, 8, 512}, DType::kBF16, 64},
                      Case{{64, 8, 0}, DType::kF8E4M3, 64}, Case{{96, 8, 512}, DType::kF8E4M3, 16},
                      Case{{2, 2, 100}, DType::kBF16, 16}, Case{{10, 2, 0}, DType::kBF16, 48},
                      Case{{48, 1, 33}, DType::kF8E4M3, 256},
                      // Windows shorter than what one copy brings.
                      Case{{10, 2, 20}, DType::kBF16, 32}, Case{{8, 2, 5}, DType::kF8E4M3, 16}),
    NameOf);

TEST(GqaAttention, RefusesWhatDoesNotFit) {
  GqaLimits limits = {.max_tokens = 8, .max_requests = 8, .shape = {10, 4, 0}};
  EXPECT_ANY_THROW(GqaWorkspaceBytes(limits));
  limits.shape = {10, 2, 0};
  GqaParams params;
  params.shape = {10, 2, 0};
  params.requests.count = 9;
  EXPECT_ANY_THROW(PlanGqaAttention(params, limits, nullptr, nullptr));
  params.requests.count = 1;
  params.num_blocks = 1;
  params.block_size = 12;
  EXPECT_ANY_THROW(GqaAttention(params, limits, nullptr, nullptr));
}

}  // namespace
}  // namespace outrider::cuda
