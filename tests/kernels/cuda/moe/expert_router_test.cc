// The router against the CPU's RouteRows, bit for bit, and the work list that it leaves. Needs a
// GPU of compute capability 9.0. One case per kind of router makes it long.
#include "outrider/kernels/cuda/moe/expert_router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/router.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct Shape {
  const char* name;
  int experts;
  int top_k;
  int shared;
  RouterScoring scoring;
  RouterMethod method;
  int num_groups;
  int top_groups;
  bool normalise;
  float scaling;
};

/// What the kernel leaves, downloaded.
struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> offsets;
  std::vector<int32_t> pairs;
  std::vector<int32_t> places;
  std::vector<ExpertTile> tiles;
};

class ExpertRouterTest : public HopperTest<::testing::TestWithParam<Shape>> {
 protected:
  static RouterSpec Spec() {
    const Shape& shape = GetParam();
    return {.experts = shape.experts,
            .top_k = shape.top_k,
            .groups = shape.num_groups,
            .top_groups = shape.top_groups,
            .scoring = shape.scoring,
            .method = shape.method,
            .normalise = shape.normalise,
            .scaling_factor = shape.scaling};
  }

  static ExpertRouterParams Params() {
    const Shape& shape = GetParam();
    ExpertRouterParams params;
    params.experts = shape.experts;
    params.top_k = shape.top_k;
    params.shared_experts = shape.shared;
    params.scores = shape.scoring == RouterScoring::kSoftmax   ? ExpertScores::kSoftmax
                    : shape.scoring == RouterScoring::kSigmoid ? ExpertScores::kSigmoid
                                                               : ExpertScores::kRootOfSoftplus;
    if (shape.method != RouterMethod::kGreedy) {
      params.num_groups = shape.num_groups;
      params.top_groups = shape.top_groups;
    }
    params.group_rank =
        shape.method == RouterMethod::kNoAuxTc ? GroupRank::kBestTwo : GroupRank::kBest;
    params.normalise = shape.normalise;
    params.scaling_factor = shape.scaling;
    return params;
  }

  static int Choices() { return GetParam().top_k + GetParam().shared; }

  /// `bound` rows are launched, `rows` of them true.
  static Routing Run(const std::vector<float>& logits, const std::vector<float>& bias, int rows,
                     int bound, int tile_rows, int replays = 0) {
    const Shape& shape = GetParam();
    const int all = shape.experts + shape.shared;
    const size_t pairs = static_cast<size_t>(bound) * Choices();
    const DeviceArray<float> d_logits(logits), d_bias(bias), weights(pairs);
    const DeviceArray<int32_t> ids(pairs), by_place(pairs), places(pairs), offsets(all + 1),
        num_tiles(1);
    const DeviceArray<int32_t> true_rows(std::vector<int32_t>{rows});
    const DeviceArray<ExpertTile> tiles(MaxExpertTiles(bound, Choices(), all, tile_rows) + 1);
    ExpertRouterParams params = Params();
    params.num_rows = bound;
    if (rows != bound) params.true_rows = true_rows.data();
    params.tile_rows = tile_rows;
    params.logits = d_logits.data();
    params.bias = bias.empty() ? nullptr : d_bias.data();
    const ExpertRouting routing = {.expert_ids = ids.data(),
                                   .weights = weights.data(),
                                   .offsets = offsets.data(),
                                   .pairs = by_place.data(),
                                   .places = places.data(),
                                   .tiles = tiles.data(),
                                   .num_tiles = num_tiles.data()};
    const auto launch = [&](cudaStream_t stream) {
      CudaOk(RouteExperts(params, routing, stream), "router");
      if (replays > 0) CudaOk(RouteExperts(params, routing, stream), "router");
    };
    RunOnDevice(launch, replays);
    Routing result = {ids.Download(),      weights.Download(), offsets.Download(),
                      by_place.Download(), places.Download(),  tiles.Download()};
    const int count = num_tiles.Download()[0];
    EXPECT_LE(count, static_cast<int>(result.tiles.size()) - 1);
    result.tiles.resize(std::clamp<size_t>(count, 0, result.tiles.size()));
    const size_t routed = static_cast<size_t>(rows) * Choices();
    for (size_t i = routed; i < pairs; ++i) {  // nothing of rows past the true number
      EXPECT_EQ(result.ids[i], -1) << i;
      EXPECT_EQ(result.pairs[i], -1) << i;
      EXPECT_EQ(result.places[i], -1) << i;
    }
    result.ids.resize(routed);
    result.weights.resize(routed);
    result.pairs.resize(routed);
    result.places.resize(routed);
    return result;
  }

  /// Choices and weights of RouteRows, the shared expert appended.
  static Routing Reference(std::vector<float> logits, const std::vector<float>& bias, int rows) {
    const Shape& shape = GetParam();
    std::vector<int32_t> ids(static_cast<size_t>(rows) * shape.top_k);
    std::vector<float> weights(ids.size());
    cpu::RouteRows(Spec(), {logits.data(), rows, shape.experts},
                   bias.empty() ? nullptr : bias.data(), ids.data(), weights.data());
    Routing result;
    for (int row = 0; row < rows; ++row) {
      for (int j = 0; j < shape.top_k; ++j) {
        result.ids.push_back(ids[static_cast<size_t>(row) * shape.top_k + j]);
        result.weights.push_back(weights[static_cast<size_t>(row) * shape.top_k + j]);
      }
      for (int i = 0; i < shape.shared; ++i) {
        result.ids.push_back(shape.experts + i);
        result.weights.push_back(1.0F);
      }
    }
    return result;
  }

  static void CheckChoices(const Routing& got, const Routing& wanted, const std::string& where) {
    ASSERT_EQ(got.ids.size(), wanted.ids.size());
    for (size_t i = 0; i < wanted.ids.size(); ++i) {
      ASSERT_EQ(got.ids[i], wanted.ids[i])
          << where << ", row " << i / Choices() << " choice " << i % Choices();
      ASSERT_EQ(std::bit_cast<uint32_t>(got.weights[i]), std::bit_cast<uint32_t>(wanted.weights[i]))
          << where << ", row " << i / Choices() << " choice " << i % Choices() << ": "
          << got.weights[i] << " and " << wanted.weights[i];
    }
  }

  /// The list of `got.ids`: by expert, then by row, in tiles.
  static void CheckList(const Routing& got, int tile_rows, const std::string& where) {
    const int all = GetParam().experts + GetParam().shared;
    size_t place = 0, tile = 0;
    for (int expert = 0; expert < all; ++expert) {
      ASSERT_EQ(got.offsets[expert], static_cast<int>(place)) << where << ", expert " << expert;
      const size_t first = place;
      for (size_t pair = 0; pair < got.ids.size(); ++pair) {
        if (got.ids[pair] != expert) continue;
        ASSERT_EQ(got.pairs[place], static_cast<int>(pair)) << where << ", place " << place;
        ASSERT_EQ(got.places[pair], static_cast<int>(place)) << where << ", pair " << pair;
        ++place;
      }
      for (size_t begin = first; begin < place; begin += tile_rows, ++tile) {
        ASSERT_LT(tile, got.tiles.size()) << where << ", expert " << expert;
        ASSERT_EQ(got.tiles[tile].expert, expert) << where << ", tile " << tile;
        ASSERT_EQ(got.tiles[tile].first_place, static_cast<int>(begin)) << where;
        ASSERT_EQ(got.tiles[tile].num_rows,
                  static_cast<int>(std::min<size_t>(tile_rows, place - begin)))
            << where << ", tile " << tile;
      }
    }
    ASSERT_EQ(got.offsets[all], static_cast<int>(place)) << where;
    ASSERT_EQ(tile, got.tiles.size()) << where;
  }

  std::vector<float> Bias() {
    return GetParam().method == RouterMethod::kNoAuxTc
               ? NormalFloats(random_, GetParam().experts, 0.3F)
               : std::vector<float>();
  }

  std::mt19937 random_{29};
};

TEST_P(ExpertRouterTest, ChoosesAsTheCpuBitForBit) {
  const std::vector<float> bias = Bias();
  for (const int rows : {0, 1, 2, 16, 17, 33, 128, 129, 300, 1024, 1100, 2500}) {
    for (const float size : {0.5F, 3.0F}) {
      const std::vector<float> logits =
          NormalFloats(random_, static_cast<size_t>(rows) * GetParam().experts, size);
      const std::string where = std::to_string(rows) + " rows";
      const int tile_rows = rows % 2 == 0 ? 64 : 8;
      const Routing got = Run(logits, bias, rows, rows, tile_rows);
      CheckChoices(got, Reference(logits, bias, rows), where);
      CheckList(got, tile_rows, where);
      if (HasFatalFailure()) return;
    }
  }
}

// Few different logits, many equal ones, and scores that rounding makes equal: in one launch and
// in two.
TEST_P(ExpertRouterTest, BreaksTiesAsTheCpu) {
  std::vector<float> bias = Bias();
  for (float& value : bias) value = std::round(value * 4) / 4;
  for (const int rows : {200, 300}) {
    std::vector<float> logits(static_cast<size_t>(rows) * GetParam().experts);
    for (size_t i = 0; i < logits.size(); ++i) {
      const float step = i < logits.size() / 2 ? 1.0F : 0x1p-23F;
      logits[i] = static_cast<float>(random_() % 4) * step;
    }
    for (int i = 0; i < GetParam().experts; ++i) logits[i] = i % 2 == 0 ? 90.0F : -120.0F;
    const Routing got = Run(logits, bias, rows, rows, 16);
    CheckChoices(got, Reference(logits, bias, rows), "ties");
    CheckList(got, 16, "ties");
  }
}

// Rows whose logits are NaN, all of them or some: their experts are different ones, so that the
// list is whole, and those of the rows between them are what they were.
TEST_P(ExpertRouterTest, TakesNanAsTheCpu) {
  const int rows = 60, experts = GetParam().experts;
  const std::vector<float> bias = Bias();
  std::vector<float> logits = NormalFloats(random_, static_cast<size_t>(rows) * experts);
  for (int row = 0; row < rows; row += 3) {
    for (int i = 0; i < experts; ++i) {
      const bool all = row % 2 == 0;
      if (all || i < row || random_() % 4 != 0) logits[row * experts + i] = NAN;
    }
  }
  const Routing got = Run(logits, bias, rows, rows, 16);
  const Routing wanted = Reference(logits, bias, rows);
  EXPECT_EQ(got.ids, wanted.ids);
  for (size_t i = 0; i < wanted.weights.size(); ++i) {
    ASSERT_TRUE(std::isnan(wanted.weights[i]) ? std::isnan(got.weights[i])
                                              : got.weights[i] == wanted.weights[i])
        << "row " << i / Choices() << ": " << got.weights[i] << " and " << wanted.weights[i];
  }
  CheckList(got, 16, "NaN");
}

TEST_P(ExpertRouterTest, ARowsBitsDependOnItAlone) {
  constexpr int kRows = 1300;
  const int experts = GetParam().experts;
  const std::vector<float> bias = Bias();
  const std::vector<float> logits = NormalFloats(random_, size_t{kRows} * experts);
  const Routing all = Run(logits, bias, kRows, kRows, 64);
  for (const int rows : {1, 5, 31, 128, 257, 1100}) {
    for (const int first : {0, 7, kRows - rows}) {
      const std::vector<float> part(logits.begin() + static_cast<int64_t>(first) * experts,
                                    logits.begin() + static_cast<int64_t>(first + rows) * experts);
      std::vector<float> padded = part;
      padded.resize(padded.size() + size_t{40} * experts, 1.0F);
      for (const bool fewer : {false, true}) {
        const Routing some =
            fewer ? Run(padded, bias, rows, rows + 40, 64) : Run(part, bias, rows, rows, 64);
        const std::string where = std::to_string(rows) + " rows from " + std::to_string(first);
        for (size_t i = 0; i < some.ids.size(); ++i) {
          const size_t at = static_cast<size_t>(first) * Choices() + i;
          ASSERT_EQ(some.ids[i], all.ids[at]) << where;
          ASSERT_EQ(std::bit_cast<uint32_t>(some.weights[i]),
                    std::bit_cast<uint32_t>(all.weights[at]))
              << where;
        }
        CheckList(some, 64, where);
        if (HasFatalFailure()) return;
      }
    }
  }
  const Routing replayed = Run(logits, bias, kRows, kRows, 64, /*replays=*/5);
  EXPECT_EQ(replayed.ids, all.ids);
  EXPECT_EQ(replayed.pairs, all.pairs);
  CheckList(replayed, 64, "replayed");
}

TEST_P(ExpertRouterTest, ManyRows) {
  constexpr int kRows = 16384;
  const std::vector<float> bias = Bias();
  const std::vector<float> logits = NormalFloats(random_, size_t{kRows} * GetParam().experts);
  const Routing got = Run(logits, bias, kRows, kRows, 128);
  CheckChoices(got, Reference(logits, bias, kRows), "many rows");
  CheckList(got, 128, "many rows");
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, ExpertRouterTest,
    ::testing::Values(Shape{"deepseek_v2_lite", 64, 6, 2, RouterScoring::kSoftmax,
                            RouterMethod::kGreedy, 1, 1, false, 1.0F},
                      Shape{"deepseek_v2", 160, 6, 2, RouterScoring::kSoftmax,
                            RouterMethod::kGroupLimitedGreedy, 8, 3, false, 16.0F},
                      Shape{"deepseek_v3", 256, 8, 1, RouterScoring::kSigmoid,
                            RouterMethod::kNoAuxTc, 8, 4, true, 2.5F},
                      Shape{"kimi_k2", 384, 8, 1, RouterScoring::kSigmoid, RouterMethod::kNoAuxTc,
                            1, 1, true, 2.827F},
                      Shape{"glm4_moe_lite", 64, 4, 0, RouterScoring::kSigmoid,
                            RouterMethod::kNoAuxTc, 1, 1, true, 1.8F},
                      Shape{"deepseek_v4", 256, 6, 1, RouterScoring::kSqrtSoftplus,
                            RouterMethod::kNoAuxTc, 1, 1, true, 1.5F},
                      Shape{"deepseek_v4_pro", 384, 6, 0, RouterScoring::kSqrtSoftplus,
                            RouterMethod::kNoAuxTc, 1, 1, true, 2.5F},
                      Shape{"step3p5", 288, 8, 1, RouterScoring::kSigmoid, RouterMethod::kNoAuxTc,
                            1, 1, true, 3.0F},
                      Shape{"one_expert", 64, 1, 0, RouterScoring::kSigmoid, RouterMethod::kNoAuxTc,
                            1, 1, true, 2.5F},
                      Shape{"tiny", 8, 2, 1, RouterScoring::kSigmoid, RouterMethod::kNoAuxTc, 4, 2,
                            true, 2.5F}),
    [](const ::testing::TestParamInfo<Shape>& shape) { return shape.param.name; });

class TokenRouterTest : public HopperTest<> {};

// Experts by token, as WeighRows of the CPU weighs them; their list, and the bits of a row alone.
TEST_F(TokenRouterTest, TakesATokensExpertsWithTheCpusWeights) {
  constexpr int kVocab = 1000, kTopK = 6, kTileRows = 16;
  std::mt19937 random(3);
  for (const int experts : {8, 256, 384}) {
    std::vector<int32_t> table;
    for (int token = 0; token < kVocab; ++token) {
      std::vector<int32_t> all(experts);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      table.insert(table.end(), all.begin(), all.begin() + kTopK);
    }
    const DeviceArray<int32_t> d_table(table);
    const RouterSpec spec = {.experts = experts,
                             .top_k = kTopK,
                             .scoring = RouterScoring::kSqrtSoftplus,
                             .method = RouterMethod::kTokenTable,
                             .normalise = true,
                             .scaling_factor = 1.5};
    constexpr int kRows = 700;
    std::vector<float> logits = NormalFloats(random, size_t{kRows} * experts, 3.0F);
    const std::vector<int32_t> kept = {17, 999, -1, 3};  // drawn on the device; the third is none
    const DeviceArray<int32_t> d_kept(kept);
    std::vector<int32_t> tokens, ids;
    for (int row = 0; row < kRows; ++row) {
      const bool drawn = row % 5 == 0;
      const auto place = static_cast<int32_t>(row % 4);
      tokens.push_back(drawn ? -2 - place : static_cast<int32_t>(random() % kVocab));
      const int32_t token = drawn ? std::max(kept[static_cast<size_t>(place)], 0) : tokens.back();
      const auto begin = table.begin() + int64_t{token} * kTopK;
      ids.insert(ids.end(), begin, begin + kTopK);
    }
    std::vector<float> scores = logits, wanted(ids.size());
    cpu::WeighRows(spec, {scores.data(), kRows, experts}, ids.data(), wanted.data());
    for (const int rows : {1, 17, 256, kRows}) {
      for (const int first : {0, kRows - rows}) {
        const DeviceArray<float> d_logits(
            std::vector(logits.begin() + int64_t{first} * experts,
                        logits.begin() + int64_t{first + rows} * experts));
        const DeviceArray<int32_t> d_tokens(
            std::vector(tokens.begin() + first, tokens.begin() + first + rows));
        const size_t pairs = static_cast<size_t>(rows) * kTopK;
        const DeviceArray<float> weights(pairs);
        const DeviceArray<int32_t> got(pairs), by_place(pairs), offsets(experts + 1), num_tiles(1);
        const DeviceArray<ExpertTile> tiles(MaxExpertTiles(rows, kTopK, experts, kTileRows));
        ExpertRouterParams params;
        params.num_rows = rows;
        params.experts = experts;
        params.top_k = kTopK;
        params.scores = ExpertScores::kRootOfSoftplus;
        params.scaling_factor = 1.5F;
        params.tile_rows = kTileRows;
        params.logits = d_logits.data();
        params.table = d_table.data();
        params.tokens = d_tokens.data();
        params.kept_tokens = d_kept.data();
        params.num_kept = static_cast<int>(kept.size());
        CudaOk(RouteExperts(params,
                            {.expert_ids = got.data(),
                             .weights = weights.data(),
                             .offsets = offsets.data(),
                             .pairs = by_place.data(),
                             .tiles = tiles.data(),
                             .num_tiles = num_tiles.data()},
                            nullptr),
               "router");
        CudaOk(cudaDeviceSynchronize(), "run");
        const auto begin = int64_t{first} * kTopK;
        const auto end = begin + static_cast<int64_t>(pairs);
        ASSERT_EQ(got.Download(), std::vector(ids.begin() + begin, ids.begin() + end));
        const std::vector<float> of_rows = weights.Download();
        for (size_t i = 0; i < pairs; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(of_rows[i]),
                    std::bit_cast<uint32_t>(wanted[static_cast<size_t>(begin) + i]))
              << rows << " rows, pair " << i;
        }
        const std::vector<int32_t> list = by_place.Download();
        const std::vector<int32_t> starts = offsets.Download();
        ASSERT_EQ(starts[experts], static_cast<int>(pairs));
        for (int expert = 0; expert < experts; ++expert) {
          for (int place = starts[expert]; place < starts[expert + 1]; ++place) {
            ASSERT_EQ(ids[static_cast<size_t>(begin) + list[place]], expert);
            ASSERT_TRUE(place == starts[expert] || list[place - 1] < list[place]);
          }
        }
      }
    }
  }
}

TEST(ExpertRouterArguments, AreRefusedWithWhatWouldBeRight) {
  const ExpertRouterParams good = {.num_rows = 4, .experts = 64, .top_k = 4};
  auto refused = [&](auto change) {
    ExpertRouterParams params = good;
    change(params);
    EXPECT_THROW(static_cast<void>(RouteExperts(params, {}, nullptr)), Error);
  };
  refused([](ExpertRouterParams& p) { p.experts = 513; });
  refused([](ExpertRouterParams& p) { p.top_k = 33; });
  refused([](ExpertRouterParams& p) { p.shared_experts = 29; });
  refused([](ExpertRouterParams& p) { p.top_k = 0; });
  refused([](ExpertRouterParams& p) { p.tile_rows = 0; });
  refused([](ExpertRouterParams& p) { p.num_groups = 3; });
  const int32_t number = 0;
  refused([&](ExpertRouterParams& p) { p.table = &number; });  // without tokens
  refused([](ExpertRouterParams& p) {
    p.num_groups = 32;
    p.top_groups = 1;  // two experts for a top_k of 4
  });
  refused([](ExpertRouterParams& p) {
    p.experts = 72;
    p.num_groups = 8;  // nine experts, three lanes
    p.top_groups = 4;
  });
  refused([](ExpertRouterParams& p) {
    p.experts = 512;
    p.num_rows = 1 << 20;
  });
}

}  // namespace
}  // namespace outrider::cuda
