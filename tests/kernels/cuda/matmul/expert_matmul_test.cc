// Products of the experts that a router chose: the same bits as a product of each expert's rows by
// its matrix, for every tile. Needs compute capability 9.0.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/moe/cut_tiles.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/matmul/matmul_world.h"

namespace outrider::cuda {
namespace {

/// What a router leaves on the device, made on the host: `rows` rows with `choices` - 1 of
/// `experts` - 1 experts and the shared one.
struct Routing {
  std::vector<int32_t> offsets, pairs;
  std::vector<ExpertTile> tiles;
  DeviceArray<int32_t> d_offsets, d_pairs, d_places, d_num_tiles;
  DeviceArray<ExpertTile> d_tiles;
  ExpertRouting device;

  Routing(int rows, int choices, int experts, int tile_rows, std::mt19937& random) {
    std::vector<std::vector<int32_t>> of_expert(experts);
    std::vector<int32_t> ids(experts - 1);
    std::iota(ids.begin(), ids.end(), 0);
    for (int row = 0; row < rows; ++row) {
      // The first experts are chosen more often.
      std::shuffle(ids.begin() + row % 2 * 2, ids.end(), random);
      for (int choice = 0; choice < choices; ++choice) {
        const int expert = choice + 1 == choices ? experts - 1 : ids[choice];
        of_expert[expert].push_back(row * choices + choice);
      }
    }
    offsets.push_back(0);
    for (int expert = 0; expert < experts; ++expert) {
      const auto& own = of_expert[expert];
      for (int first = 0; first < static_cast<int>(own.size()); first += tile_rows) {
        const int count = std::min(tile_rows, static_cast<int>(own.size()) - first);
        tiles.push_back({expert, offsets.back() + first, count, 0});
      }
      pairs.insert(pairs.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int32_t>(pairs.size()));
    }
    EXPECT_LE(static_cast<int64_t>(tiles.size()),
              MaxExpertTiles(rows, choices, experts, tile_rows));
    std::vector<int32_t> places(pairs.size());
    for (size_t place = 0; place < pairs.size(); ++place) {
      places[pairs[place]] = static_cast<int32_t>(place);
    }
    d_places = DeviceArray<int32_t>(places);
    d_pairs = DeviceArray<int32_t>(pairs);
    d_tiles = DeviceArray<ExpertTile>(tiles);
    d_num_tiles = DeviceArray<int32_t>(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
    d_offsets = DeviceArray<int32_t>(offsets);
    device.offsets = d_offsets.data();
    device.pairs = d_pairs.data();
    device.places = d_places.data();
    device.tiles = d_tiles.data();
    device.num_tiles = d_num_tiles.data();
  }
};

struct Case {
  WeightFormat format;
  int hidden;
  int width;
  int experts = 9;  // with the shared one
  int choices = 4;
};

class ExpertMatMulTest : public HopperTest<::testing::TestWithParam<Case>> {
 protected:
  /// Rows per tile, and whether the products run in parts.
  static std::vector<std::pair<int, bool>> TilesAndParts() {
    std::vector<std::pair<int, bool>> all;
    for (const int tile : {8, 16, 32, 64, 128, 256}) {
      for (const bool in_parts : {false, true}) all.emplace_back(tile, in_parts);
    }
    return all;
  }

  std::mt19937 random_{5};
};

/// Gate and up of each part, then down, which finds only places of the parts so far.
void RunInParts(const ExpertMatMulParams& gate_up, const ExpertMatMulParams& down, int64_t places) {
  constexpr int kParts = 3;
  CutTilesParams cut;
  cut.routing = gate_up.routing;
  cut.parts = kParts;
  for (int i = 0; i < kParts; ++i) cut.ends[i] = places * (i + 1) / kParts;
  cut.room = MaxExpertTiles(gate_up.max_rows, gate_up.choices, gate_up.experts, gate_up.tile_rows);
  const DeviceArray<ExpertTile> tiles(static_cast<size_t>(2 * kParts * cut.room));
  const DeviceArray<int32_t> counts(2 * kParts);
  for (const bool by_last_place : {false, true}) {
    cut.by_last_place = by_last_place;
    cut.tiles = tiles.data() + (by_last_place ? kParts * cut.room : 0);
    cut.counts = counts.data() + (by_last_place ? kParts : 0);
    CudaOk(CutTiles(cut, nullptr), "parts of tiles");
  }
  for (int i = 0; i < kParts; ++i) {
    ExpertMatMulParams part = gate_up;
    part.routing.tiles = tiles.data() + i * cut.room;
    part.routing.num_tiles = counts.data() + i;
    part.is_gathered = i > 0;
    ExpertMatMul(part, nullptr);
    part = down;
    part.routing_settled = false;
    part.routing.tiles = tiles.data() + (kParts + i) * cut.room;
    part.routing.num_tiles = counts.data() + kParts + i;
    ExpertMatMul(part, nullptr);
  }
}

TEST_P(ExpertMatMulTest, GivesTheBitsOfEachExpertsOwnProduct) {
  const auto [format, hidden, width, experts, choices] = GetParam();
  constexpr int kMaxRows = 330;  // of the shared expert more than a tile has
  std::vector<PlainWeight> gates, ups, downs;
  for (int i = 0; i < experts; ++i) {
    gates.emplace_back(width, hidden, format, Spread::kNormal, random_);
    ups.emplace_back(width, hidden, format, Spread::kNormal, random_);
    downs.emplace_back(hidden, width, format, Spread::kNormal, random_);
  }
  const DeviceWeight first_gate_up(gates[0], &ups[0], 1), first_down(downs[0], nullptr, 1);
  const size_t gate_up_bytes = PackedWeightBytes(format, 2 * width, hidden);
  const size_t down_bytes = PackedWeightBytes(format, hidden, width);
  const DeviceArray<uint8_t> gate_ups(gate_up_bytes * experts), down(down_bytes * experts);
  for (int i = 0; i < experts; ++i) {
    first_gate_up.PackTo(gate_ups.data() + i * gate_up_bytes, gates[i], &ups[i]);
    first_down.PackTo(down.data() + i * down_bytes, downs[i], nullptr);
  }
  const std::vector<uint16_t> x =
      DrawBf16(static_cast<size_t>(kMaxRows) * hidden, Spread::kNormal, random_);
  const DeviceArray<uint16_t> d_x(x);
  const DeviceArray<uint16_t> gathered(static_cast<size_t>(kMaxRows) * choices * hidden);
  const int inner_stride = (width + 7) / 8 * 8;
  for (const int rows : {1, 3, 20, 170, kMaxRows}) {
    for (const auto& [tile, in_parts] : TilesAndParts()) {
      const Routing routing(rows, choices, experts, tile, random_);
      const size_t pairs = routing.pairs.size();
      const DeviceArray<uint16_t> inner(static_cast<size_t>(kMaxRows) * choices * inner_stride);
      const DeviceArray<float> out(static_cast<size_t>(kMaxRows) * choices * hidden);
      ExpertMatMulParams params;
      params.max_rows = kMaxRows;  // more than there are
      params.choices = choices;
      params.experts = experts;
      params.x = d_x.data();
      params.x_stride = hidden;
      params.gathered = gathered.data();
      params.w = first_gate_up.weight();
      params.w.data = gate_ups.data();
      params.y = inner.data();
      params.y_stride = inner_stride;
      params.routing = routing.device;
      params.tile_rows = tile;
      ExpertMatMulParams down_params = params;
      down_params.x = inner.data();
      down_params.x_stride = inner_stride;
      down_params.routing_settled = true;
      down_params.w = first_down.weight();
      down_params.w.data = down.data();
      down_params.y = out.data();
      down_params.y_stride = hidden;
      down_params.y_type = OutputType::kF32;
      if (in_parts) {
        RunInParts(params, down_params, static_cast<int64_t>(pairs));
      } else {
        ExpertMatMul(params, nullptr);
        ExpertMatMul(down_params, nullptr);
      }
      CudaOk(cudaDeviceSynchronize(), "run");
      const std::vector<uint16_t> got_inner = inner.Download();
      const std::vector<float> got = out.Download();
      for (int expert = 0; expert < experts; ++expert) {
        const int begin = routing.offsets[expert];
        const int count = routing.offsets[expert + 1] - begin;
        if (count == 0) continue;
        std::vector<int32_t> numbers(count);
        for (int i = 0; i < count; ++i) numbers[i] = routing.pairs[begin + i] / choices;
        const DeviceArray<int32_t> d_numbers(numbers);
        const DeviceArray<uint16_t> own_inner(static_cast<size_t>(count) * inner_stride);
        const DeviceArray<float> own(static_cast<size_t>(count) * hidden);
        MatMulParams dense;
        dense.rows = count;
        dense.x = d_x.data();
        dense.x_stride = hidden;
        dense.x_rows = d_numbers.data();
        dense.x_size = kMaxRows;
        dense.w = first_gate_up.weight();
        dense.w.data = gate_ups.data() + expert * gate_up_bytes;
        dense.y = own_inner.data();
        dense.y_stride = inner_stride;
        MatMul(dense, nullptr);
        dense.x = own_inner.data();
        dense.x_stride = inner_stride;
        dense.x_rows = nullptr;
        dense.w = first_down.weight();
        dense.w.data = down.data() + expert * down_bytes;
        dense.y = own.data();
        dense.y_stride = hidden;
        dense.y_type = OutputType::kF32;
        MatMul(dense, nullptr);
        CudaOk(cudaDeviceSynchronize(), "run");
        const std::vector<uint16_t> want_inner = own_inner.Download();
        const std::vector<float> want = own.Download();
        for (int i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(&got_inner[(begin + i) * inner_stride],
                                &want_inner[i * inner_stride], width * 2),
                    0)
              << "gate and up: rows " << rows << " tile " << tile << " expert " << expert
              << " place " << i << " of " << count;
          ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(routing.pairs[begin + i]) * hidden],
                                &want[static_cast<size_t>(i) * hidden], hidden * 4),
                    0)
              << "down: rows " << rows << " tile " << tile << " expert " << expert << " place " << i
              << " of " << count;
        }
      }
      // Nothing behind the true rows is written.
      for (size_t i = pairs * hidden; i < got.size(); ++i) {
        uint32_t bits;
        std::memcpy(&bits, &got[i], sizeof(bits));
        ASSERT_EQ(bits, 0xFFFFFFFFU) << "rows " << rows << " tile " << tile;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, ExpertMatMulTest,
    ::testing::Values(Case{WeightFormat::kBf16, 256, 192}, Case{WeightFormat::kBf16, 200, 88},
                      Case{WeightFormat::kF8, 256, 384},
                      Case{WeightFormat::kF8PowerOfTwo, 256, 192},
                      Case{WeightFormat::kF8Rows, 256, 192}, Case{WeightFormat::kInt4, 256, 384},
                      Case{WeightFormat::kInt4, 352, 96}, Case{WeightFormat::kFp4, 256, 192},
                      Case{WeightFormat::kNvfp4, 256, 192},
                      // As many as Step-3.5-Flash has.
                      Case{WeightFormat::kBf16, 128, 64, 289, 9},
                      Case{WeightFormat::kF8, 128, 128, 289, 9}));

}  // namespace
}  // namespace outrider::cuda
